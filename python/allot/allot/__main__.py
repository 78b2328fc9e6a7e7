"""Replaces this process by the executable `allot` of this package, which finds the environment's torch by ALLOT_TORCH_DIR."""

import importlib.util
import os
import pathlib
import sys


def torch_directory() -> str | None:
    """Where the package torch is, which is looked up and not imported; None without it."""
    found = importlib.util.find_spec("torch")
    return None if found is None or found.origin is None else os.path.dirname(found.origin)


def main() -> None:
    program = pathlib.Path(__file__).parent / "bin" / "allot"
    torch = torch_directory()
    if torch is not None:
        os.environ.setdefault("ALLOT_TORCH_DIR", torch)
    try:
        os.execv(program, ["allot", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"allot: cannot start {program}: {error.strerror}; install a wheel that tools/wheel made")


if __name__ == "__main__":
    main()
