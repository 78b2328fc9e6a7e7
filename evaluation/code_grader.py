"""Grades programs, a JSON line each: {"id", "reply": the program, "fields": {"seconds"}} -> {"score": 1 or 0}.

A program passes when it runs to its end. It runs in a process of its own, in a directory of its own, which is killed with all that
it started when its time is over. That it came to its end is told over a pipe whose number the program is not given, so neither
sys.exit(0) nor os._exit(0) passes."""
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile

# The empty namespace is that of HumanEval's published harness: __name__ is "builtins" there.
RUN = """
import os, sys
tell = int(sys.argv.pop())
with open(sys.argv.pop(), encoding="utf-8") as file:
    text = file.read()
try:
    exec(compile(text, "program", "exec"), {})
except BaseException:
    os._exit(1)
os.write(tell, b"end")
os._exit(0)
"""


def passes(program, seconds):
    folder = tempfile.mkdtemp()
    ends = os.pipe()
    try:
        path = os.path.join(folder, "program.py")
        with open(path, "w", encoding="utf-8", errors="surrogatepass") as file:
            file.write(program)
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", RUN, path, str(ends[1])], cwd=folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, pass_fds=[ends[1]])
        os.close(ends[1])
        ends = (ends[0], None)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        os.set_blocking(ends[0], False)
        try:
            return os.read(ends[0], 8) == b"end"
        except BlockingIOError:
            return False
    except (UnicodeError, ValueError):
        return False  # no program: half a character, or a zero byte
    finally:
        for end in ends:
            if end is not None:
                os.close(end)
        shutil.rmtree(folder, ignore_errors=True)


for line in sys.stdin:
    row = json.loads(line)
    right = passes(row["reply"], float(row.get("fields", {}).get("seconds", "3")))
    print(json.dumps({"score": int(right), "extracted": row["extracted"]}), flush=True)
