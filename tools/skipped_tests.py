#!/usr/bin/env python3
"""Prints one line: how many tests there were, how many of them were skipped, and why.

    skipped_tests.py TESTS.XML FOLDER      (TESTS.XML written by ctest --output-junit)

A CTest that is a whole GoogleTest executable counts as the tests in FOLDER/NAME.xml, which the executable wrote.
"""

import collections
import pathlib
import re
import sys
import xml.etree.ElementTree


def reason(output):
    """What the test said: the line after GoogleTest's "file:line: Skipped", or one that begins with "skipped:"."""
    found = re.search(r": Skipped\n(.+)", output) or re.search(r"^skipped: (.+)", output, re.MULTILINE)
    return found[1].strip() if found else "no reason given"


def cases_of(path):
    return list(xml.etree.ElementTree.parse(path).getroot().iter("testcase"))


def skips(path, folder):
    """One entry for each test: None where it ran, else why it did not."""
    written = {file.stem: file for file in folder.glob("*.xml")}
    for case in cases_of(path):
        if case.get("name") in written:
            for inner in cases_of(written[case.get("name")]):
                skipped = inner.find("skipped")
                yield None if skipped is None else (skipped.get("message") or "").split("\n")[-1].strip() or "no reason given"
        else:
            yield None if case.find("skipped") is None else reason(case.findtext("system-out", ""))


def summary(entries):
    skipped = collections.Counter(why for why in entries if why is not None)
    if not skipped:
        return f"{len(entries)} tests, none skipped"
    reasons = "; ".join(f"{count} {text}" for text, count in skipped.most_common())
    return f"{len(entries)} tests, {skipped.total()} skipped: {reasons}"


def main():
    print(summary(list(skips(sys.argv[1], pathlib.Path(sys.argv[2])))))


if __name__ == "__main__":
    main()
