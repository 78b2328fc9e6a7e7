#!/usr/bin/env python3
"""Questions of four choices in the form of MMLU's files, made by rule: sums, differences, the largest of numbers, days, kinds of things.

    choice_questions.py FILE.csv [NUMBER]

A line each of question, A, B, C, D and the letter, without a header line; the same ones every time.
"""

import csv
import random
import sys

DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
THINGS = {
    "animal": ["dog", "horse", "eagle", "shark"],
    "colour": ["red", "green", "blue", "yellow"],
    "city": ["Paris", "London", "Rome", "Berlin"],
    "fruit": ["apple", "banana", "cherry", "pear"],
    "tool": ["hammer", "saw", "drill", "wrench"],
}


def choices(chance, right, wrong):
    """Four different choices in random order, and the letter of the right one."""
    others = [text for text in dict.fromkeys(map(str, wrong)) if text != str(right)][:3]
    order = chance.sample([*others, str(right)], 4)
    return [*order, "ABCD"[order.index(str(right))]]


def question(chance, kind):
    a, b = chance.randint(2, 60), chance.randint(2, 60)
    if kind == 0:
        return [f"What is {a} plus {b}?", *choices(chance, a + b, [a + b + d for d in (1, -1, 10, 2)])]
    if kind == 1:
        return [f"What is {a + b} minus {b}?", *choices(chance, a, [a + 1, a - 1, b + 100, a + 10])]
    if kind == 2:
        numbers = chance.sample(range(1, 999), 4)
        return ["Which of these numbers is the largest?", *choices(chance, max(numbers), numbers)]
    if kind == 3:
        day = chance.randrange(7)
        after = DAYS[(day + 1) % 7]
        return [f"Which day comes after {DAYS[day]}?", *choices(chance, after, chance.sample([x for x in DAYS if x != after], 3))]
    name = chance.choice(list(THINGS))
    others = [thing for other, things in THINGS.items() if other != name for thing in things]
    article = "an" if name[0] in "aeiou" else "a"
    return [f"Which of these is {article} {name}?", *choices(chance, chance.choice(THINGS[name]), chance.sample(others, 3))]


def rows(count=200):
    chance = random.Random(3)
    return [question(chance, number % 5) for number in range(count)]


def write(path, count=200):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows(count))


if __name__ == "__main__":
    write(sys.argv[1], *map(int, sys.argv[2:3]))
