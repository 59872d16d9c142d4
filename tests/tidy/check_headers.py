#!/usr/bin/env python3
"""Rejects a header of a room that does not compile alone.

One that a file of the build includes before anything else has compiled alone there, but for the second and later files
of those that CMake compiles as one. The others are compiled here, with the flags of the .cc that includes the header
with the fewest instruction set flags (-m...), or only with the project root when no .cc does. A header and then one that
includes it, however indirectly, are compiled in one go: all that the first brings, the second brings itself.

usage: check_headers.py PROJECT_ROOT BUILD_DIR [COMPILER]
"""

import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

sys.dont_write_bytecode = True  # The source tree stays as it is.
import check_includes  # noqa: E402

UNITY_INCLUDE = re.compile(r'^#include "(/[^"]+)"', re.MULTILINE)
FIRST_INCLUDE = re.compile(r'\s*#include "([^"]+)"')


def relevant_flags(command):
    """What decides whether a header compiles: paths, definitions, standard, instruction set."""
    words = iter(shlex.split(command))
    flags = []
    for word in words:
        if word in ("-isystem", "-I", "-D"):
            flags += [word, next(words)]
        elif re.match(r"-(I|D|std=|m|fopenmp)", word):
            flags.append(word)
    return flags


def compiled_files(entry):
    """The files of one entry of compile_commands.json, in the order in which they are compiled."""
    file = pathlib.Path(entry["file"])
    if file.suffix != ".cxx" or file.parent.name != "Unity":
        return [file]
    return [pathlib.Path(name) for name in UNITY_INCLUDE.findall(file.read_text())]


def chains_of(headers, includes):
    """The headers as lists, in each of which every header includes those before it, however indirectly.

    includes: header -> what it includes itself"""
    def reachable(header):
        found, queue = set(), [header]
        while queue:
            new = set(includes.get(queue.pop(), ())) - found
            found |= new
            queue += new
        return found

    below = {header: reachable(header) for header in headers}
    left, chains = sorted(headers, key=lambda header: (len(below[header]), header)), []
    while left:
        chain = [left.pop()]
        for header in reversed(left):
            if header in below[chain[0]]:
                chain.insert(0, header)
        left = [header for header in left if header not in chain]
        chains.append(chain)
    return chains


def main():
    root, build = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
    compiler = sys.argv[3] if len(sys.argv) > 3 else "g++"
    headers = check_includes.files_below(root, check_includes.ROOM_PATTERNS, {".h"})
    entries = json.loads((build / "compile_commands.json").read_text())
    compiled = [(files, relevant_flags(entry["command"])) for entry in entries if (files := compiled_files(entry))]
    flags_of = {file: flags for files, flags in compiled for file in files}
    alone = {files[0] for files, _ in compiled}

    def isa_of(flags):
        return tuple(flag for flag in flags if flag.startswith("-m"))

    def isa_flags(flags):
        return len(isa_of(flags))

    users = {}  # header -> the flags of the files that include it
    first = set()  # what a file includes first
    for file, flags in flags_of.items():
        if file.is_relative_to(root) and file.exists():
            text = check_includes.without_comments(file.read_text())
            if file in alone and (before_all := FIRST_INCLUDE.match(text)):
                first.add(before_all[1])
            for header in check_includes.INCLUDE.findall(text):
                users.setdefault(header, []).append(flags)
    everybody = [f"-I{root}", "-std=c++20"]
    flags = {name: min(users.get(name, []), key=isa_flags, default=everybody)
             for name in (str(header.relative_to(root)) for header in headers) if name not in first}
    includes = {name: check_includes.INCLUDE.findall(check_includes.without_comments((root / name).read_text()))
                for name in (str(header.relative_to(root)) for header in headers)}
    chains = [chain for isa in {isa_of(flags[name]) for name in flags}
              for chain in chains_of([name for name in flags if isa_of(flags[name]) == isa], includes)]

    def compile_alone(chain):
        done = subprocess.run(
            [compiler, *flags[chain[-1]], "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-x", "c++",
             *(word for name in chain for word in ("-include", name)), os.devnull],
            cwd=root, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        return chain, done.returncode, done.stderr

    failed = False
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for chain, code, messages in pool.map(compile_alone, chains):
            if code != 0:
                failed = True
                print(f"{' or '.join(chain)} does not compile alone:\n{messages}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
