"""A child process that never outlives the Ray process it belongs to, and is asked to stop before it is killed."""

from __future__ import annotations

import enum
import subprocess
from types import TracebackType


class Ending(enum.Enum):
    """What the exit status of an allot process says about starting it again."""

    DONE = "done"  # finished, or asked to stop and drained
    FAILED = "failed"  # worth another try, perhaps elsewhere
    HOPELESS = "hopeless"  # wrong usage, or model or data that are not the run's: every try ends the same

    @staticmethod
    def of(code: int) -> Ending:
        if code == 0:
            return Ending.DONE
        # Codes of `allot worker` and `allot aggregator`: 2 wrong usage, 3 mismatch.
        return Ending.HOPELESS if code in (2, 3) else Ending.FAILED


class ChildProcess:
    """Runs a command in a `with` block. Its output goes where this process's output goes: into Ray's logs.

    Leaving the block sends SIGTERM and, after `drain_seconds`, SIGKILL. The thread that enters the block must stay alive
    until the block ends: the kernel sends the child SIGTERM when that thread ends, which covers a Ray process that is
    itself killed and gets no chance to leave the block.
    """

    def __init__(self, command: list[str], drain_seconds: float, pass_fds: tuple[int, ...] = ()):
        self._command = ["setpriv", "--pdeathsig", "TERM", "--", *command]
        self._drain_seconds = drain_seconds
        self._pass_fds = pass_fds

    def __enter__(self) -> ChildProcess:
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, pass_fds=self._pass_fds)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(self._drain_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def terminate(self) -> None:
        """Asks the process to stop; any thread may call it while the block is open."""
        self._process.terminate()

    def wait(self) -> int:
        """The exit status; negative is the number of the signal that ended it."""
        while True:
            try:
                # In short waits: ray.cancel interrupts Python between two instructions, not inside a system call.
                return self._process.wait(timeout=0.5)
            except subprocess.TimeoutExpired:
                continue
