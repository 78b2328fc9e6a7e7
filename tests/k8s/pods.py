"""Runs the containers of rendered manifests with runc as a kubelet has them run: the image's root file system read-only, the
user, groups, limits, arguments and mounts that the pod names, files of a Secret as a Secret has them, signals and grace period.
What a cluster adds around them (scheduling, Services, network policies, moving volumes) is not here: pods share one network
of their own, in which the names of Services are addresses of loopback."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import time

from manifests import REPOSITORY, Skipped, mebibytes

PROGRAM = "/usr/bin/allot"  # the ENTRYPOINT of both images


def check_runc():
    """Throws Skipped where containers cannot be run."""
    if os.geteuid() != 0:
        raise Skipped("needs root to run containers")
    for tool, package in (("runc", "runc"), ("ip", "iproute2")):
        if shutil.which(tool) is None:
            raise Skipped(f"{tool} is missing; ./setup --check installs Debian's {package}")
    for groups in map(pathlib.Path, ("/sys/fs/cgroup", "/sys/fs/cgroup/memory")):
        if groups.exists() and os.statvfs(groups).f_flag & os.ST_RDONLY:
            raise Skipped(f"{groups} is mounted read-only, so no container can be given its limits")
    tried = subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
                           capture_output=True, text=True, check=False)
    if tried.returncode:
        raise Skipped(f"mounts or networks of their own are not permitted here: {tried.stderr.strip()}")


def assemble(root, *programs):
    """The root file system of an image with these programs, as the Containerfiles make it."""
    done = subprocess.run([str(REPOSITORY / "images/assemble"), str(root), *map(str, programs)], capture_output=True,
                          text=True, check=False)
    if done.returncode:
        raise AssertionError(done.stderr)
    return root


class Node:
    """A folder with volumes and logs, and a network that its pods share. `images`: root file systems by the last word of the
    image's name. `volumes`: folders by claim, Secret or ConfigMap."""

    def __init__(self, folder, images, services):
        self.folder = pathlib.Path(folder)
        self.folder.chmod(0o755)
        self.images = images
        self.volumes = {}
        self.made = 0
        (self.folder / "hosts").write_text("127.0.0.1 localhost " + " ".join(services) + "\n")
        hold = "ip link set lo up && echo up && exec setpriv --pdeathsig KILL sleep infinity"
        self.pause = subprocess.Popen(["unshare", "--net", "sh", "-c", hold], stdout=subprocess.PIPE, text=True)
        if self.pause.stdout.readline() != "up\n":
            raise AssertionError("the network of the pods has no loopback")

    def close(self):
        self.pause.kill()
        self.pause.communicate()

    @property
    def network(self):
        return f"/proc/{self.pause.pid}/ns/net"

    def add_volume(self, name, group):
        """A volume that fsGroup may write to."""
        folder = self.folder / f"volume-{name}"
        folder.mkdir()
        os.chown(folder, 0, group)
        folder.chmod(0o2775)
        self.volumes[name] = folder
        return folder

    def add_files(self, name, files, group, mode=0o440):
        """A Secret or ConfigMap: root's files, readable by fsGroup."""
        folder = self.folder / f"files-{name}"
        folder.mkdir()
        for file, text in files.items():
            (folder / file).write_text(text)
            (folder / file).chmod(mode)
            os.chown(folder / file, 0, group)
        self.volumes[name] = folder

    def get(self, path, port=8080):
        """(status, body) of the pods' HTTP port, asked from within their network; (0, reason) without an answer."""
        ask = ("import sys,urllib.request,urllib.error\n"
               "try: answer = urllib.request.urlopen(sys.argv[1], timeout=5)\n"
               "except urllib.error.HTTPError as error: answer = error\n"
               "except OSError as error: print(0, error); sys.exit()\n"
               "print(answer.status, answer.read().decode())")
        done = subprocess.run(["nsenter", f"--net={self.network}", "python3", "-c", ask, f"http://127.0.0.1:{port}{path}"],
                              capture_output=True, text=True, check=True)
        status, _, body = done.stdout.partition(" ")
        return int(status), body

    def start(self, pod, host, environment=()):
        """The one container of a pod spec, on this node. `environment`: what stands in for hardware."""
        self.made += 1
        (container,) = pod["containers"]
        bundle = self.folder / f"bundle-{self.made}"
        bundle.mkdir()
        root = self.images[re.search(r"(\w+):[^:/]*$", container["image"])[1]]
        (bundle / "config.json").write_text(json.dumps(self.config(pod, container, root, host, environment)))
        return Container(self, bundle, f"{host}-{self.made}-{os.getpid()}", pod["terminationGracePeriodSeconds"])

    def config(self, pod, container, root, host, environment):
        context, limits = pod["securityContext"], container["resources"]["limits"]
        own = container["securityContext"]
        capabilities = [] if own["capabilities"] == {"drop": ["ALL"]} else None  # None: this does not run other pods
        mounts = [{"destination": "/proc", "type": "proc", "source": "proc"},
                  {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]},
                  {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["nosuid", "noexec", "nodev"]},
                  {"destination": "/etc/hosts", "type": "bind", "source": str(self.folder / "hosts"),
                   "options": ["bind", "ro"]}]
        volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
        for mount in container["volumeMounts"]:
            volume = volumes.get(mount["name"], {"persistentVolumeClaim": {"claimName": mount["name"]}})
            if "emptyDir" in volume:
                size = mebibytes(volume["emptyDir"]["sizeLimit"])
                mounts.append({"destination": mount["mountPath"], "type": "tmpfs", "source": "tmpfs",
                               "options": ["nosuid", "nodev", f"size={size}m", "mode=1777"]})
                continue
            name = (volume.get("persistentVolumeClaim", {}).get("claimName") or volume.get("secret", {}).get("secretName")
                    or volume["configMap"]["name"])
            mounts.append({"destination": mount["mountPath"], "type": "bind", "source": str(self.volumes[name]),
                           "options": ["rbind", "ro" if mount.get("readOnly") else "rw"]})
        return {
            "ociVersion": "1.0.2", "hostname": host, "mounts": mounts,
            "root": {"path": str(root), "readonly": own["readOnlyRootFilesystem"]},
            "process": {
                "args": [PROGRAM, *container["args"]], "cwd": "/", "env": ["PATH=/usr/bin", *environment],
                "user": {"uid": context["runAsUser"], "gid": context["runAsGroup"], "additionalGids": [context["fsGroup"]]},
                "noNewPrivileges": not own["allowPrivilegeEscalation"],
                "capabilities": {kind: capabilities for kind in ("bounding", "effective", "permitted", "inheritable", "ambient")},
            },
            "linux": {
                "resources": {"memory": {"limit": mebibytes(limits["memory"]) << 20},
                              "cpu": {"period": 100000, "quota": int(limits["cpu"]) * 100000}},
                "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]
                + [{"type": "network", "path": self.network}],
            },
        }


class Container:
    """A container that runs, or ran."""

    def __init__(self, node, bundle, name, grace):
        self.name, self.grace, self.log = name, grace, bundle / "log"
        self.runc = ["runc", "--root", str(node.folder / "runc")]
        with self.log.open("w") as log:
            self.process = subprocess.Popen([*self.runc, "run", "--bundle", str(bundle), name], stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=subprocess.STDOUT)

    def first_process(self):
        """Its process 1, by the number that it has outside."""
        state = subprocess.run([*self.runc, "state", self.name], capture_output=True, text=True, check=True)
        return json.loads(state.stdout)["pid"]

    def kernel_says(self):
        return pathlib.Path(f"/proc/{self.first_process()}/status").read_text()

    def execute(self, command):
        """The exit status of a command in the container, as a probe runs it."""
        return subprocess.run([*self.runc, "exec", self.name, *command], capture_output=True, check=False).returncode

    def send(self, number):
        subprocess.run([*self.runc, "kill", self.name, str(int(number))], capture_output=True, check=True)

    def stop(self):
        """SIGTERM and what a kubelet does about it: the exit status, 137 when the grace period was too short."""
        self.send(signal.SIGTERM)
        try:
            return self.process.wait(self.grace)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self):
        self.send(signal.SIGKILL)
        return self.process.wait(30)

    def end(self):
        if self.process.poll() is None:
            subprocess.run([*self.runc, "kill", self.name, "KILL"], capture_output=True, check=False)
            self.process.wait(30)
        subprocess.run([*self.runc, "delete", "--force", self.name], capture_output=True, check=False)

    def until(self, holds, what, seconds=60):
        """Waits until `holds()` is true while the container runs; its value."""
        deadline = time.monotonic() + seconds
        while not (value := holds()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{self.name}: no {what}; exit {self.process.poll()}; its log: {self.log.read_text()[-2000:]}")
            time.sleep(0.05)
        return value
