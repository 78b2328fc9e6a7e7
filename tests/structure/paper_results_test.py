"""Results in docs/paper that take a second are what the commands say today, and what is kept of an output is right.

    paper_results_test.py SOURCE --allot EXECUTABLE [unittest options]
"""

import json
import math
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

SOURCE = Path(sys.argv.pop(1)).resolve()
ALLOT = sys.argv.pop(sys.argv.index("--allot") + 1)
sys.argv.remove("--allot")
sys.path.insert(0, str(SOURCE / "tools" / "paper"))
sys.dont_write_bytecode = True
import measure  # noqa: E402
import measurements  # noqa: E402

# Without a model; the same numbers on every processor but for the last bits of exp and log.
QUICK = ["operations-decode", "operations-prefill", "variance-1", "variance-3", "bernoulli", "bernoulli-group", "amdahl"]


def differences(name, committed, made):
    """Places where two results differ by more than rounding."""
    if isinstance(committed, dict) and isinstance(made, dict):
        keys = sorted({*committed, *made})
        return [found for key in keys for found in differences(f"{name}.{key}", committed.get(key), made.get(key))]
    if isinstance(committed, list) and isinstance(made, list) and len(committed) == len(made):
        pairs = enumerate(zip(committed, made, strict=True))
        return [found for place, pair in pairs for found in differences(f"{name}[{place}]", *pair)]
    if isinstance(committed, float) and isinstance(made, float):
        return [] if math.isclose(committed, made, rel_tol=1e-4, abs_tol=1e-9) else [f"{name}: {committed}, but {made} now"]
    return [] if committed == made else [f"{name}: {committed}, but {made} now"]


class PaperResults(unittest.TestCase):
    def test_what_takes_a_second_is_what_the_commands_say(self):
        with tempfile.TemporaryDirectory() as folder:
            inputs = measure.Inputs(SimpleNamespace(smollm2="", gsm8k="", humaneval="", python=""), Path(folder))
            for name in QUICK:
                with self.subTest(name):
                    measurement = measurements.MEASUREMENTS[name]
                    words = [ALLOT, *inputs.resolve(measurement.words)]
                    done = subprocess.run(words, cwd=SOURCE, capture_output=True, text=True, timeout=120)
                    self.assertEqual(done.returncode, 0, done.stderr)
                    committed = json.loads((SOURCE / "docs" / "paper" / f"{name}.json").read_text())
                    for field in ("command", "processor", "seconds"):
                        del committed[field]
                    self.assertEqual(differences(name, committed, measurements.rounded(measurement.keep(done.stdout))), [])

    def test_differences_are_found(self):
        self.assertEqual(differences("a", {"x": [1.0, 2]}, {"x": [1.00001, 2]}), [])
        self.assertEqual(differences("a", {"x": [1.0, 2]}, {"x": [1.001, 3]}),
                         ["a.x[0]: 1.0, but 1.001 now", "a.x[1]: 2, but 3 now"])  # fmt: skip
        self.assertEqual(differences("a", {"x": 1}, {}), ["a.x: 1, but None now"])

    def test_rows_keep_what_is_common_once(self):
        lines = '{"seed": 1, "samples": 2, "error": 0.5, "more": 3}\n{"seed": 1, "samples": 4, "error": 0.25, "more": 3}\n'
        keep = measurements.rows("samples", "error", common=("seed",))
        self.assertEqual(keep(lines), {"seed": 1, "columns": ["samples", "error"], "rows": [[2, 0.5], [4, 0.25]]})
        with self.assertRaisesRegex(ValueError, "seed"):
            keep(lines.replace('"seed": 1', '"seed": 2', 1))

    def test_a_result_is_written_as_json_with_a_line_for_each_row(self):
        result = {"command": "allot x", "columns": ["a"], "rows": [[1], [2]]}
        text = measure.format_result(result)
        self.assertEqual(json.loads(text), result)
        self.assertEqual(text.count("\n"), 8)

    def test_numbers_keep_six_digits(self):
        self.assertEqual(measurements.rounded({"a": [0.123456789, 5, "x", None, 1234567.8]}), {"a": [0.123457, 5, "x", None, 1234570.0]})


if __name__ == "__main__":
    unittest.main()
