"""Python environments of their own for tests that install something, without the network."""

import pathlib
import subprocess
import sys

SKIPPED = 77


def output(*words, code=0, **more):
    """What a program that is to end with `code` prints: standard output, or with another code than 0 standard error."""
    ran = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, **more)
    if ran.returncode != code:
        raise AssertionError(f"{words} exits with {ran.returncode}: {ran.stdout}{ran.stderr}")
    return ran.stdout if code == 0 else ran.stderr


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def tools_of(source):
    """The packages that build wheels; without them the test is skipped."""
    if not (source / ".deps/wheel.sha256").exists():
        skip(f"{source / '.deps/wheel'} is not there; ./setup --check makes it")
    return next((source / ".deps/wheel/lib").glob("python*/site-packages"))


def make_environment(folder, python=sys.executable, sees=()):
    """An environment in which the packages of the folders `sees` can be imported, too."""
    output(python, "-m", "venv", folder)
    site = next((folder / "lib").glob("python*/site-packages"))
    (site / "seen.pth").write_text("".join(f"{path}\n" for path in sees))
    return folder / "bin"


def see(environment, path):
    site = next((environment.parent / "lib").glob("python*/site-packages"))
    with (site / "seen.pth").open("a") as file:
        file.write(f"{path}\n")


def clean_variables(environment, home: pathlib.Path):
    """For programs of the environment: nothing of the caller's, and pip asks nobody."""
    return {"PATH": f"{environment}:/usr/bin:/bin", "HOME": str(home), "LC_ALL": "C.UTF-8", "PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1",
            "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "HF_HUB_OFFLINE": "1"}
