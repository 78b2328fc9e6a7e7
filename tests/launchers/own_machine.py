"""Runs a test in a network and a process namespace of its own: its traffic cannot leave the loopback interface, ports are
all free, and whatever it started ends with it."""

import os
import shutil
import subprocess
import sys

SKIPPED = 77
MARK = "ALLOT_TEST_OWN_MACHINE"


def enter():
    """Starts this script again inside the namespaces and ends with its status; returns at once when it is inside. Exits 77
    (skipped) where namespaces are not permitted."""
    if os.environ.get(MARK):
        return
    for tool, package in [("unshare", "util-linux"), ("ip", "iproute2")]:
        if shutil.which(tool) is None:
            print(f"skipped: {tool} is missing; install Debian's {package}")
            sys.exit(SKIPPED)
    unshare = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        unshare += ["--user", "--map-root-user"]
    inside = [*unshare, "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    probe = subprocess.run([*inside, "true"], capture_output=True, text=True, check=False)
    if probe.returncode != 0:
        print(f"skipped: namespaces are not permitted here: {' '.join(unshare)}: {probe.stderr.strip()}")
        sys.exit(SKIPPED)
    os.environ[MARK] = "1"
    os.execvp(inside[0], [*inside, sys.executable, *sys.argv])
