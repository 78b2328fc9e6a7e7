"""A model with outlier channels (tools/outlier_model.py) gives the logits of the model that it was made of.

    outlier_model_test.py ALLOT SOURCE
"""

import array
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(sys.argv.pop())
ALLOT = sys.argv.pop()
TOOL = SOURCE / "tools/outlier_model.py"
MODELS = SOURCE / "tests/data/parity"
IDS = ",".join(str(2 + 7 * i % 90) for i in range(40))


def make(model, out, *options):
    return subprocess.run([sys.executable, TOOL, model, out, *map(str, options)], capture_output=True, text=True)


def logits(model, dtype):
    """The whole file: a header of the shape, and the numbers."""
    return subprocess.run([ALLOT, "logits", "--model", model, "--ids", IDS, "--dtype", dtype, "--threads", "2"], check=True,
                          capture_output=True).stdout


def numbers(data):
    return array.array("f", data[-40 * 96 * 4:])


class OutlierModel(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name) / "model"

    def test_products_of_queries_and_keys_keep_their_bits(self):
        for name in ("llama_head64", "qwen2_head64_group7"):
            for dtype in ("float32", "bfloat16"):
                out = self.out / name / dtype
                out.parent.mkdir(parents=True, exist_ok=True)
                self.assertEqual(make(MODELS / name, out, "--factor", 256, "--pairs", 3).stderr, "")
                self.assertNotEqual((out / "model.safetensors").read_bytes(), (MODELS / name / "model.safetensors").read_bytes())
                self.assertEqual(logits(out, dtype), logits(MODELS / name, dtype), f"{name} in {dtype}")

    def test_a_bias_makes_a_qwen2_model_of_nearly_the_same_logits(self):
        model = MODELS / "llama_head64"
        self.assertEqual(make(model, self.out, "--bias", 300, "--pairs", 1).stderr, "")
        self.assertEqual(json.loads((self.out / "config.json").read_text())["architectures"], ["Qwen2ForCausalLM"])
        was, now = numbers(logits(model, "float32")), numbers(logits(self.out, "float32"))
        self.assertNotEqual(was, now)
        size = (sum(x * x for x in was) / len(was)) ** .5
        off = (sum((x - y) ** 2 for x, y in zip(was, now)) / len(was)) ** .5
        self.assertLess(off, .02 * size)

    def test_what_would_change_more_is_refused(self):
        model = MODELS / "llama_head64"
        for options, words in (((model, "--factor", 3), "power of two"), ((model, "--pairs", 33), "1 to 32"),
                               ((MODELS / "qwen3_head128",), "Qwen3ForCausalLM"), ((MODELS / "llama_bias_sharded", "--bias", 1), "biases")):
            refused = make(options[0], self.out, *options[1:])
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn(words, refused.stderr)
            self.assertFalse(self.out.exists())


if __name__ == "__main__":
    unittest.main()
