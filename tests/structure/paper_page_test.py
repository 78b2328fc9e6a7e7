"""docs/paper.md is what tools/paper/page.py makes of the committed results, whole and without an empty cell.

    paper_page_test.py SOURCE [unittest options]
"""

import json
import shutil
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(SOURCE / "tools" / "paper"))
sys.dont_write_bytecode = True
import page  # noqa: E402
from results import Results  # noqa: E402

COMMITTED = SOURCE / "docs" / "paper.md"
RESULTS = SOURCE / "docs" / "paper"


class PaperPage(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def check(self, committed=COMMITTED, results=RESULTS):
        said = []
        code = page.main(["--check", "--page", str(committed), "--results", str(results)], said.append)
        return code, "\n".join(said)

    def changed_page(self, old, new):
        text = COMMITTED.read_text()
        self.assertIn(old, text)
        path = self.folder / "paper.md"
        path.write_text(text.replace(old, new, 1))
        return path

    def changed_results(self, name, change):
        """A copy of the results in which change(result) was called with one of them."""
        copy = Path(tempfile.mkdtemp(dir=self.folder)) / "results"
        shutil.copytree(RESULTS, copy)
        result = json.loads((copy / f"{name}.json").read_text())
        change(result)
        (copy / f"{name}.json").write_text(json.dumps(result))
        return copy

    def test_the_committed_page_is_made_of_the_committed_results(self):
        self.assertEqual(self.check(), (0, ""))

    def test_every_item_of_the_paper_stands_once_and_has_no_empty_cell(self):
        self.assertEqual(page.problems(COMMITTED.read_text()), [])
        self.assertEqual(len(page.EXPECTED), 30 + 10 + 8 + 21)

    def test_what_is_wrong_with_a_page_is_named(self):
        text = COMMITTED.read_text()
        row = next(line for line in text.splitlines() if line.startswith("| Table 7 |"))
        cells = row.strip("|").split("|")
        without = text.replace(row + "\n", "")
        self.assertEqual(page.problems(without), ["Table 7 stands 0 times, once is expected"])
        self.assertEqual(page.problems(text.replace(row, row + "\n" + row)), ["Table 7 stands 2 times, once is expected"])
        self.assertEqual(page.problems(text.replace(row, row.replace("Table 7", "Table 31"))),
                         ["Table 7 stands 0 times, once is expected", "Table 31 is no part of the paper"])  # fmt: skip
        for cell, expected in (
            (" ", ["Table 7: cell 4 is empty", "Table 7 has no number"]),
            (" as in the paper ", ["Table 7 has no number"]),
            (" none ", ["Table 7 has no number and no reason"]),
            (" none: the weights are not here ", []),
        ):
            changed = "|" + "|".join([*cells[:3], cell, *cells[4:]]) + "|"
            self.assertEqual(page.problems(text.replace(row, changed)), expected)

    def test_a_changed_number_of_the_page_is_found(self):
        code, said = self.check(self.changed_page("| Table 11 |", "| Table 11  |"))
        self.assertEqual(code, 1)
        self.assertIn("Table 11", said)

    def test_a_changed_result_is_found(self):
        def more_right(result):
            correct = result["columns"].index("correct")
            result["rows"][2][correct] += 60

        code, said = self.check(results=self.changed_results("eval-tiny-sys", more_right))
        self.assertEqual(code, 1)
        self.assertIn("is not what tools/paper/page.py makes", said)

    def test_a_bar_that_is_not_met_is_found(self):
        def far_off(result):
            share = result["columns"].index("share")
            result["rows"][0][share] += 0.006

        def more_operations(result):
            result["rows"][2][result["columns"].index("additions")] += 1

        def other_error(result):
            result["rows"][8][result["columns"].index("error")] *= 1.2

        def off_formula(result):
            result["rows"][0][result["columns"].index("squared_error")] *= 1.5

        for name, change, bar in (
            ("coverage", far_off, "Table 11"),
            ("operations-decode", more_operations, "Tables 10 and 12"),
            ("bernoulli", other_error, "Figure 6"),
            ("variance-3", off_formula, "Closed-form"),
        ):
            with self.subTest(name):
                code, said = self.check(results=self.changed_results(name, change))
                self.assertEqual(code, 1)
                self.assertIn(f"bar not met: {bar}", said)

    def test_results_of_another_command_or_of_none_are_found(self):
        def other_command(result):
            result["command"] += " --seed 7"

        results = self.changed_results("coverage", other_command)
        shutil.copy(results / "tails.json", results / "heads.json")
        found = page.stale(Results(results))
        self.assertEqual(len(found), 2)
        self.assertIn("heads.json", found[0])
        self.assertIn("coverage.json", found[1])

    def test_a_quotation_has_to_stand_in_its_page(self):
        results = Results(RESULTS)
        with self.assertRaisesRegex(ValueError, "README.md"):
            results.quote("README.md", "allot wins every race")
        with self.assertRaisesRegex(ValueError, "no part"):
            results.quote("README.md", "Apache-2.0", "MIT")
        with self.assertRaisesRegex(KeyError, "no shape 3x3"):
            results.kernel("3x3", "sys")


if __name__ == "__main__":
    unittest.main()
