#!/usr/bin/env python3
"""Prints one line: how many tests of a CTest run were skipped, and why.

    skipped_tests.py TESTS.XML      (written by ctest --output-junit)
"""

import collections
import re
import sys
import xml.etree.ElementTree


def reason(output):
    """What the test said: the line after GoogleTest's "file:line: Skipped", or one that begins with "skipped:"."""
    found = re.search(r": Skipped\n(.+)", output) or re.search(r"^skipped: (.+)", output, re.MULTILINE)
    return found[1].strip() if found else "no reason given"


def summary(cases):
    skipped = [case for case in cases if case.find("skipped") is not None]
    if not skipped:
        return f"no test of {len(cases)} was skipped"
    reasons = collections.Counter(reason(case.findtext("system-out", "")) for case in skipped)
    why = "; ".join(f"{count} {text}" for text, count in reasons.most_common())
    return f"{len(skipped)} of {len(cases)} tests were skipped: {why}"


def main():
    print(summary(list(xml.etree.ElementTree.parse(sys.argv[1]).getroot().iter("testcase"))))


if __name__ == "__main__":
    main()
