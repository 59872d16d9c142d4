#!/usr/bin/env python3
"""Prints the classes of a folder's headers by their number of methods, the largest first.

A method is each function that the class body declares: overloads count one by one, static, virtual and private ones
count too. Constructors, destructors, operators, and the methods of nested and of base classes do not.

usage: count_methods.py FOLDER [MOST]    with MOST, exits with 1 if a class has more methods
"""

import pathlib
import re
import sys

COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
CLASS = re.compile(r"\b(?:class|struct)\s+(\w+)\s*(?:final\s*)?(?::[^:;{}][^;{}]*)?\{")
FUNCTION = re.compile(r"^[^=({]*?(~?\w+|operator\S+)\s*\(")


def class_body(text, begin):
    """The text from an opening brace to its end, without what lies in deeper braces."""
    depth, body = 0, []
    for char in text[begin:]:
        depth -= char == "}"
        if depth <= 1 and not (depth == 0 and char == "}"):
            body.append(char)
        depth += char == "{"
        if depth == 0:
            break
    return "".join(body)[1:]


def methods(name, body):
    body = re.sub(r"\b(public|private|protected):", ";", body)
    while (flat := re.sub(r"<[^<>;{}]*>", "", body)) != body:
        body = flat
    found = []
    for statement in re.split(r";|\{\}", body):
        match = FUNCTION.match(statement.strip().replace("\n", " "))
        if match and match[1].lstrip("~") != name and not match[1].startswith("operator"):
            found.append(match[1])
    return found


def main():
    counts = []
    for path in sorted(pathlib.Path(sys.argv[1]).rglob("*.h")):
        text = COMMENT_OR_STRING.sub("", path.read_text())
        for match in CLASS.finditer(text):
            counts.append((len(methods(match[1], class_body(text, match.end() - 1))), match[1], path))
    for count, name, path in sorted(counts, key=lambda entry: -entry[0]):
        if count > 0:
            print(f"{count:4} {name:24} {path}")
    return int(len(sys.argv) > 2 and max(counts)[0] > int(sys.argv[2]))


if __name__ == "__main__":
    sys.exit(main())
