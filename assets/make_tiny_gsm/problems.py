"""Templated word problems in GSM8K's JSONL form: {"question": ..., "answer": "worked steps\n#### number"}.

A story starts with one or two numbers and changes them in 2 to 4 steps; sentences that do not matter, some with numbers
of their own, stand between the steps. Every number is between 1 and 999. A problem is a function of (seed, index), so
any part of a set can be made again alone:

    python3 problems.py --seed 2 --count 1000 > heldout.jsonl
"""

import argparse
import json
import random
import sys

NAMES = [
    ("Ann", "she", "her"), ("Ben", "he", "him"), ("Carla", "she", "her"), ("Dan", "he", "him"), ("Ella", "she", "her"),
    ("Finn", "he", "him"), ("Grace", "she", "her"), ("Hugo", "he", "him"), ("Ida", "she", "her"), ("Jack", "he", "him"),
    ("Kira", "she", "her"), ("Leo", "he", "him"), ("Maya", "she", "her"), ("Noah", "he", "him"), ("Olga", "she", "her"),
    ("Paul", "he", "him"), ("Rosa", "she", "her"), ("Sam", "he", "him"), ("Tina", "she", "her"), ("Victor", "he", "him"),
]
ITEMS = [
    "apples", "books", "coins", "pencils", "stamps", "shells", "cards", "marbles", "stickers", "eggs", "candles",
    "buttons", "plums", "tickets", "stones", "cookies", "beads", "toys", "flowers", "keys",
]
PLACES = ["market", "school", "library", "harbor", "park", "bakery", "station", "garden", "museum", "beach"]

START_ONE = ["{N} has {a} {i}.", "There are {a} {i} on the table of {N}.", "{N} brings {a} {i} to the {p}.",
             "On Monday {N} counts {a} {i}."]
START_TWO = ["{N} has {a} {i} and {O} has {b} {i}. They put them all together.",
             "{N} collects {a} {i} in the morning and {b} {i} in the evening."]
PLUS = ["{S} buys {b} more.", "Then {O} gives {h} {b} {i}.", "{S} finds {b} {i} near the {p}.",
        "{b} new {i} arrive by mail.", "At the {p} {s} wins {b} {i}."]
MINUS = ["{S} gives {b} of them to {O}.", "{S} loses {b} {i} on the way to the {p}.", "{b} of the {i} break.",
         "{S} sells {b} {i} at the {p}.", "{O} takes {b} of the {i}."]
TIMES = ["A month later {s} has {b} times as many.", "{O} trades {h} {b} {i} for each one.",
         "With luck the number of {i} grows to {b} times what it was."]
OVER = ["{S} packs them evenly into {b} boxes and keeps only one box.",
        "{S} shares the {i} equally among {b} people and keeps one share."]
HALF = ["{S} gives half of them away.", "Half of the {i} get lost at the {p}."]
FILLER = ["It is a warm day.", "The {p} opens at {f}.", "{O} watches with {f} friends.", "A dog sleeps nearby.",
          "The bus to the {p} takes {f} minutes.", "Everybody at the {p} is happy.", "{O} is {f} years old.",
          "It rains a little in the evening."]
QUESTION = ["How many {i} does {N} have now?", "How many {i} are left in the end?", "What is the number of {i} now?"]


def problem(seed: int, index: int) -> dict:
    """Problem `index` of the set `seed`."""
    r = random.Random(f"{seed}:{index}")
    name, subject, other_case = r.choice(NAMES)
    other = r.choice(NAMES)[0]
    while other == name:
        other = r.choice(NAMES)[0]
    item = r.choice(ITEMS)

    def say(templates, b=0, a=0):
        return r.choice(templates).format(N=name, O=other, s=subject, S=subject.capitalize(), h=other_case, i=item,
                                          p=r.choice(PLACES), a=a, b=b, f=r.randint(2, 60))

    steps = r.randint(2, 4)
    sentences, lines = [], []
    value = r.randint(2, 120)
    if r.random() < 0.3:
        b = r.randint(2, 99)
        sentences.append(say(START_TWO, b, value))
        lines.append(f"{value}+{b}={value + b}")
        value += b
        steps -= 1
    else:
        sentences.append(say(START_ONE, 0, value))
    for _ in range(steps):
        if r.random() < 0.45:
            sentences.append(say(FILLER))
        kinds = ["plus"] * (value <= 900) + ["minus"] * (value >= 5)
        kinds += ["times"] * (value * 2 <= 999)
        divisors = [d for d in range(3, 10) if value % d == 0 and value > d]
        kinds += ["over"] * bool(divisors) + ["half"] * (value % 2 == 0 and value > 2)
        kind = r.choice(kinds)
        before = value
        if kind == "plus":
            b = r.randint(2, min(99, 999 - value))
            value += b
            lines.append(f"{before}+{b}={value}")
            sentences.append(say(PLUS, b))
        elif kind == "minus":
            b = r.randint(2, min(99, value - 1))
            value -= b
            lines.append(f"{before}-{b}={value}")
            sentences.append(say(MINUS, b))
        elif kind == "times":
            b = r.randint(2, min(9, 999 // value))
            value *= b
            lines.append(f"{before}*{b}={value}")
            sentences.append(say(TIMES, b))
        elif kind == "over":
            b = r.choice(divisors)
            value //= b
            lines.append(f"{before}/{b}={value}")
            sentences.append(say(OVER, b))
        else:
            value //= 2
            lines.append(f"{before}/2={value}")
            sentences.append(say(HALF))
    if r.random() < 0.45:
        sentences.append(say(FILLER))
    sentences.append(say(QUESTION))
    return {"question": " ".join(sentences), "answer": "\n".join(lines) + f"\n#### {value}"}


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seed", type=int, required=True)
    arguments.add_argument("--count", type=int, required=True)
    options = arguments.parse_args()
    for index in range(options.count):
        json.dump(problem(options.seed, index), sys.stdout)
        sys.stdout.write("\n")


if __name__ == "__main__":
    main()
