#!/usr/bin/env python3
"""The check of references must accept a clean tree and reject each kind of bad one."""

import sys
import unittest

sys.dont_write_bytecode = True  # The source tree stays as it is.
import check_references  # noqa: E402
import tree_test  # noqa: E402

CLEAN = {
    "README.md": "# Project\n[the way in](docs/way.md#from-a-to-b), `common/base/`, docs/way.md 1.2 and 1.3\n"
                 "[picture](docs/picture.svg) [elsewhere](https://example.org/lost.md) 3/4 and/or build/lost\n",
    "docs/way.md": "# Way\n## 1. First\n### 1.2 From `A` to B\n### 1.3 Last\n"
                   "## From A to B\n```\n# 9. A comment in a program\n```\n"
                   "[up](../README.md) (section 1.3 of way.md)\n"
                   "| what you see | what it means |\n|---|---|\n| `no room for ... rows`, or `x` | `lost` |\n",
    "docs/picture.svg": "",
    "docs/adr/0002-two.md": "# ADR 2\n",
    "common/base/CMakeLists.txt": "# docs/way.md 1\nadd(lost.cc)\n",
    "common/base/base.h":
        "/// See way.md 1.2, docs/way.md, \"From A to B\" and ADR 2. Also base.{h,cc}, common/*/base.h,\n"
        "/// common/base/base (a program), section 1.2\n/// of way.md.\n"
        "const char* s = \"docs/lost.md\";\n#include <lost.h>\n",
    "common/base/base.cc": "int a;  // base.h, docs/way.md section 1\n// " + "w" * 117 + "\n",
    "tools.py": '"""Reads docs/way.md."""\nx = "lost.md"  # see base.h\n',
    "run": "#!/bin/sh\n# base.cc\necho lost.py\n",
    "build/lost.md": "lost.h",
    "common/base/said.cc": 'a("no room "\n  "for {} rows", x);\n',
}
# name: (files that change the clean tree, what the one problem must say)
BAD = {
    "page that is not there, in a comment": ({"common/base/base.cc": "\n// see lost.md\n"},
                                             "common/base/base.cc:2: there is no lost.md"),
    "page of a folder": ({"common/base/base.cc": "// see docs/lost.md\n"}, "there is no docs/lost.md"),
    "page of a folder that is not there": ({"common/base/base.cc": "// see tools/lost.py\n"},
                                           "there is no tools/lost.py"),
    "header": ({"common/base/base.cc": "/* as common/base/lost.h has it */\n"}, "there is no common/base/lost.h"),
    "one of two": ({"common/base/base.cc": "// base.{h,inc}\n"}, "there is no base.{h,inc}"),
    "pattern": ({"common/base/base.cc": "// common/lost*.h\n"}, "there is no common/lost*.h"),
    "folder": ({"README.md": "`common/lost/`"}, "there is no common/lost/"),
    "path in a page": ({"README.md": "# Project\n\nin `base/lost.cc`\n"}, "README.md:3: there is no base/lost.cc"),
    "path in a program's text": ({"tools.py": '"""Reads lost.md."""\n'}, "tools.py:1: there is no lost.md"),
    "path in a script's comment": ({"run": "#!/bin/sh\ntrue  # lost.sh\n"}, "run:2: there is no lost.sh"),
    "path in CMake": ({"common/base/CMakeLists.txt": "# lost.cc\n"}, "there is no lost.cc"),
    "section": ({"common/base/base.cc": "// way.md 1.4\n"}, "way.md has no section 1.4"),
    "second of two sections": ({"common/base/base.cc": "// way.md 1.2 and 7\n"}, "way.md has no section 7"),
    "section before its page": ({"common/base/base.cc": "// sections 1.2 and 3.1 of docs/way.md\n"},
                                "docs/way.md has no section 3.1"),
    "section in a wrapped comment": ({"common/base/base.cc": "/// the rule of docs/way.md\n/// section 4\n"},
                                     "docs/way.md has no section 4"),
    "section that is a comment in a program": ({"README.md": "docs/way.md section 9"}, "has no section 9"),
    "title": ({"README.md": 'docs/way.md, "From A to C"'}, 'has no section "From A to C"'),
    "second of two titles, of a link": ({"README.md": '[docs/way.md](docs/way.md), "Way" and "Lost"'},
                                        'has no section "Lost"'),
    "ADR": ({"common/base/base.cc": "// ADR 3 says why\n"}, "there is no ADR 3"),
    "link": ({"docs/way.md": "[up](README.md)"}, "link to README.md: there is no docs/README.md"),
    "anchor": ({"README.md": "[way](docs/way.md#lost)"}, "link to docs/way.md#lost: no heading"),
    "anchor within the page": ({"README.md": "# Project\n[here](#lost)"}, "link to #lost: no heading"),
    "picture": ({"README.md": "![p](docs/lost.png)"}, "there is no docs/lost.png"),
    "picture in HTML": ({"README.md": '<img src="docs/lost.svg">'}, "there is no docs/lost.svg"),
    "message that nobody prints": ({"common/base/said.cc": 'a("no room for {} x");\n'}, "no source prints 'rows'"),
    "wide line": ({"common/base/base.cc": "// " + "w" * 118 + "\n"}, "base.cc:1: 121 characters wide"),
}


CheckReferences = tree_test.tree_test(check_references.check, CLEAN, BAD)

if __name__ == "__main__":
    unittest.main()
