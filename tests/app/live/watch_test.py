"""`allot status --watch` on a pseudo-terminal and in a pipe, against a running aggregator.

    watch_test.py FOLDER_WITH_ALLOT_AND_SIMULATED_WORKER"""

import fcntl
import json
import os
import pathlib
import pty
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from live_run import Run  # noqa: E402

TOOL = sys.argv[1]


class Screen:
    """A command on a pseudo-terminal."""

    def __init__(self, words, columns=100, rows=30):
        self.ours, theirs = pty.openpty()
        self.resize(columns, rows)
        self.process = subprocess.Popen([str(word) for word in words], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(theirs)
        self.text = ""

    def resize(self, columns, rows):
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def wait_for(self, holds, seconds=20):
        """Reads until `holds` is true of everything that was drawn since the last wait; returns that."""
        deadline = time.monotonic() + seconds
        while not holds(self.text):
            ready, _, _ = select.select([self.ours], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(f"the screen never came there: {self.text[-2000:]!r}")
            try:
                self.text += os.read(self.ours, 65536).decode(errors="replace")
            except OSError:  # the command has ended
                if holds(self.text):
                    break
                raise
        text, self.text = self.text, ""
        return text

    def wait_for_end(self, seconds=60):
        """Reads until the command has closed its side; returns everything that was drawn since the last wait."""
        try:
            self.wait_for(lambda text: False, seconds)
        except TimeoutError:  # an OSError, too
            raise
        except OSError:
            pass
        text, self.text = self.text, ""
        return text

    def end(self):
        self.process.kill()
        self.process.wait()
        os.close(self.ours)


def serve_again(run, endpoint):
    """At the port that it had, which the system may have given to some other connection for a moment."""
    for _ in range(20):
        try:
            return run.serve("--bind", endpoint)
        except RuntimeError as error:
            if "the port is in use" not in str(error):
                raise
            time.sleep(0.5)
    return run.serve("--bind", endpoint)


class Watch(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="allot-watch-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.run_ = self.enterContext(Run(TOOL, self.folder, episodes=60))

    def command(self, *more):
        return [self.run_.allot, "status", "--run", self.run_.directory, "--watch", "--interval", "0.3", *more]

    def test_draws_in_place_follows_the_size_and_ends_with_the_run(self):
        run = self.run_
        run.serve()
        run.hold.touch()
        run.work("pod-1")
        run.wait_until(lambda now: now["episodes_done"] == 20)
        screen = Screen(self.command())
        self.addCleanup(screen.end)
        drawn = screen.wait_for(lambda text: text.count("20 of 60 episodes") >= 2)
        self.assertTrue(drawn.startswith("\x1b[?1049h\x1b[?25l"), "a page of its own, no cursor")
        self.assertIn("pod-1", drawn)
        self.assertIn("layer   7", drawn)
        self.assertRegex(drawn, "[▁▂▃▄▅▆▇█]{20}")
        screen.resize(40, 12)
        small = screen.wait_for(lambda text: text.count("\x1b[J") >= 3)
        last = small.split("\x1b[H")[-2]
        self.assertNotIn("layer   7", last)
        self.assertTrue(all(len(line.replace("\x1b[K", "").replace("\x1b[J", "")) < 40 for line in last.split("\r\n")), repr(last))
        run.hold.unlink()
        end = screen.wait_for_end()
        self.assertEqual(screen.process.wait(timeout=10), 0)
        self.assertIn("\x1b[?25h\x1b[?1049l", end)
        page = end.split("\x1b[?1049l")[-1]
        self.assertIn("stage finished", page, "the last page stays when the screen is given back")
        self.assertIn("score     learned", page)

    def test_says_that_nobody_answers_and_goes_on_when_somebody_does(self):
        run = self.run_
        serving = run.serve()
        endpoint = (run.directory / "endpoint").read_text().strip()
        screen = Screen([run.allot, "status", "--connect", endpoint, "--watch", "--interval", "0.3"])
        self.addCleanup(screen.end)
        screen.wait_for(lambda text: "0 of 60 episodes" in text)
        self.assertEqual(run.stop(serving), 0)
        lost = screen.wait_for(lambda text: "no answer from" in text)
        self.assertIn("no answer from " + endpoint, lost)
        self.assertIn("0 of 60 episodes", lost.split("\x1b[H")[-1], "what was known stays on the screen")
        serve_again(run, endpoint)
        screen.wait_for(lambda text: "no answer" not in text.split("\x1b[H")[-1] and "0 of 60" in text.split("\x1b[H")[-1])
        screen.process.send_signal(signal.SIGINT)
        screen.wait_for(lambda text: "\x1b[?25h\x1b[?1049l" in text)
        self.assertEqual(screen.process.wait(timeout=10), 0)

    def test_writes_lines_where_its_output_is_no_terminal(self):
        run = self.run_
        run.serve()
        run.work("pod-1")
        lines = subprocess.run(list(map(str, self.command())), capture_output=True, text=True, timeout=60, check=True).stdout
        self.assertNotIn("\x1b", lines)
        self.assertRegex(lines.splitlines()[-1], r"^finished  \d+ of 192 held-out answers .* learned \d")
        objects = subprocess.run(list(map(str, self.command("--json"))), capture_output=True, text=True, timeout=60, check=True).stdout
        self.assertEqual(json.loads(objects.splitlines()[-1])["stage"], "finished")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
