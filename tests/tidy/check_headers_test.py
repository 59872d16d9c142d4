#!/usr/bin/env python3
"""The check of headers must accept those that compile alone, and reject one that another's includes would help."""

import pathlib
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True  # The source tree stays as it is.
import check_headers  # noqa: E402
import tree_test  # noqa: E402


def problems_of(folder):
    """What the check says, as its command line has it."""
    done = subprocess.run([sys.executable, check_headers.__file__, folder, pathlib.Path(folder, "build")],
                          capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).splitlines()


CLEAN = {
    "build/compile_commands.json": "[]",
    "common/base/words.h": "#pragma once\n#include <string>\nstd::string word();\n",
    "common/base/texts.h": '#pragma once\n#include <vector>\n#include "common/base/words.h"\nstd::vector<std::string> texts();\n',
    "common/base/books.h": '#pragma once\n#include "common/base/texts.h"\nstd::vector<std::string> books();\n',
}
BAD = {
    "what includes it brings what it lacks": (
        {"common/base/words.h": "#pragma once\nstd::string word();\n",
         "common/base/texts.h": '#pragma once\n#include <string>\n#include "common/base/words.h"\n'},
        "common/base/words.h"),
    "what it includes does not bring what it lacks": (
        {"common/base/books.h": '#pragma once\n#include "common/base/texts.h"\nstd::map<int, int> books();\n'},
        "common/base/books.h"),
    "another header has it": (
        {"common/base/other.h": "#pragma once\nstd::string other();\n"}, "common/base/other.h"),
}


class Chains(unittest.TestCase):
    def test_have_each_header_once_before_those_that_include_it(self):
        includes = {"a": ["string"], "b": ["a"], "c": ["vector", "b"], "d": ["a"], "e": []}
        self.assertEqual(sorted(check_headers.chains_of(list("abcde"), includes)), [["a", "b", "c"], ["d"], ["e"]])


Tree = tree_test.tree_test(problems_of, CLEAN, BAD)

if __name__ == "__main__":
    unittest.main()
