"""What docs/paper.md may say: the results in docs/paper, and numbers of other pages, which have to stand there."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def digits(value: float, decimals: int) -> str:
    """1234.5 as 1,234.5; below 1 without its zero, as the other pages write numbers: .054."""
    text = f"{value:,.{decimals}f}"
    return re.sub(r"^(-?)0\.", r"\1.", text)


def significant(value: float) -> str:
    """Three digits: .0102, 1.25, 143."""
    if value == 0:
        return "0"
    return digits(value, max(0, 2 - math.floor(math.log10(abs(value)))))


class Results:
    def __init__(self, folder: Path = ROOT / "docs" / "paper"):
        self.all = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
        self._pages: dict[str, str] = {}

    def __getitem__(self, name: str) -> dict:
        if name not in self.all:
            raise KeyError(f"docs/paper has no {name}.json; tools/paper/measure.py --only {name} makes it")
        return self.all[name]

    def rows(self, name: str, **match) -> list[dict]:
        columns = self[name]["columns"]
        rows = [dict(zip(columns, row, strict=True)) for row in self[name]["rows"]]
        found = [row for row in rows if all(row[key] == value for key, value in match.items())]
        if not found:
            raise KeyError(f"docs/paper/{name}.json has no row with {match}")
        return found

    def row(self, name: str, **match) -> dict:
        found = self.rows(name, **match)
        if len(found) != 1:
            raise KeyError(f"docs/paper/{name}.json has {len(found)} rows with {match}, one is expected")
        return found[0]

    def column(self, name: str, column: str, **match) -> list:
        return [row[column] for row in self.rows(name, **match)]

    def percent(self, name: str, schedule: str) -> str:
        row = self.row(name, schedule=schedule)
        return f"{100 * row['correct'] / row['n']:.0f}"

    def percents(self, name: str, samples: list[int]) -> str:
        return " / ".join(self.percent(name, f"uniform:{count}") for count in samples)

    def contexts(self, estimator: str, schedules: list[str], kind: str, tokens: int) -> str:
        """Percents of assets/smol-long's answers to contexts of a kind and a length."""
        found = (
            self.row(f"long-{estimator}", schedule=schedule, kind=kind, tokens=tokens)["accuracy"] for schedule in schedules
        )
        return " / ".join(f"{100 * accuracy:.0f}" for accuracy in found)

    def widest(self, *names: str) -> float:
        """Half of the widest 95 % interval, in points."""
        return max(50 * (high - low) for name in names for low, high in self.column(name, "interval_95"))

    # Numbers of other pages.

    def page(self, path: str) -> str:
        if path not in self._pages:
            self._pages[path] = (ROOT / path).read_text()
        return self._pages[path]

    def quote(self, path: str, passage: str, shown: str = "") -> str:
        """`shown`, a part of a passage that the page at `path` has to hold; the passage itself without it."""
        if passage not in self.page(path):
            raise ValueError(f"{path} does not say '{passage}' any more; what docs/paper.md quotes of it has to follow")
        if shown not in passage:
            raise ValueError(f"'{shown}' is no part of '{passage}'")
        return shown or passage

    def kernel(self, shape: str, column: str) -> float:
        """Microseconds of the table of decode attention on one H200 in docs/internals/kernels.md."""
        page = self.page("docs/internals/kernels.md")
        table = page[page.index("### Decode attention, microseconds") :]
        lines = [line for line in table.splitlines() if line.startswith("| ")]
        columns = [cell.strip(" `") for cell in lines[0].strip("|").split("|")]
        for line in lines[2:]:
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if cells[0] == shape:
                return float(re.search(r"\d+(\.\d+)?", cells[columns.index(column)]).group())
        raise KeyError(f"docs/internals/kernels.md has no shape {shape}")
