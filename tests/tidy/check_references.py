#!/usr/bin/env python3
"""Rejects a comment or a page that points nowhere, and a source line that is too wide.

In comments (.cc .h .inc .fbs .py .sh CMake, and the shell scripts without a suffix) and in pages (.md):
- a path whose first folder is one of the project's exists, from the root or from the file's own folder
  (a program may be named without its .cc; *, ? and {a,b} are understood);
- a file name without a folder is some file's of the project, where its suffix says that it is a page or
  a source;
- a numbered section exists: "gemma4.md 1.2 and 1.3", "section 4.2 of docs/gemma4.md";
- a titled one exists: 'docs/architecture.md, "One round"', and so does an ADR by its number;
- the target of a Markdown link or image exists, its #anchor too;
- `a message` in a table of "what you see" is in a string of a source ("..." stands for anything).
Lines of .cc, .h and .inc have at most 120 characters. Nothing is exempt: a string literal can be split.

usage: check_references.py PROJECT_ROOT
"""

import fnmatch
import functools
import io
import itertools
import os
import pathlib
import re
import sys
import tokenize

sys.dont_write_bytecode = True  # The source tree stays as it is.
import check_includes  # noqa: E402

WIDTH_MAX = 120
CPP = {".cc", ".h", ".inc"}
SKIPPED = re.compile(r"^(\.git|\.cache|build.*|__pycache__|shared)$")  # folders that are no part of the project

# What is named without being here: made by the build or by a user, or another project's.
ELSEWHERE = re.compile(
    r"^(schemas/)?outrider_generated\.h$|^ggml-common\.h$|^generation/candidate_generator\.py$|^vllm/")

# A name may begin with a dot (.ci/run) but does not go on from a longer path, an option or a URL.
PATH = re.compile(r"(?<![\w./~<:@$+-])(?:\.\./)*\.?[A-Za-z0-9_](?:[\w./*?+-]|\{[\w.,+-]*\})*")
SUFFIX = re.compile(r"[^./]\.(md|h|cc|inc|py|sh|fbs)$")
NUMBER = r"\d+(?:\.\d+)*"
NUMBERS = rf"{NUMBER}(?:(?:,|\s+and|\s+to)\s+{NUMBER})*"
PAGE = r"[\w./-]+\.md"
LINK_END = r"(?:`?\]\([^)\s]*\))?"  # a link's text names its page too
SECTIONS = [
    re.compile(rf"(?P<page>{PAGE}){LINK_END}(?:,?\s+sections?)?\s+(?P<numbers>{NUMBERS})(?![\w%])"),
    re.compile(rf"[Ss]ections?\s+(?P<numbers>{NUMBERS})\s+of\s+\[?`?(?P<page>{PAGE})"),
]
TITLES = re.compile(rf'(?P<page>{PAGE}){LINK_END},?\s+(?P<titles>"[^"\n]+"(?:(?:,|\s+and)\s+"[^"\n]+")*)')
ADR = re.compile(r"\bADRs?\s+(\d+)")
LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")
SEEN = re.compile(r"^\| what you see \|.*\n(?:\|.*\n)*", re.MULTILINE)
HEADING = re.compile(r"^#{1,6} +(.+?) *#*$", re.MULTILINE)


def files_of(root):
    """Every file of the project, relative to its root."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if not SKIPPED.match(name))
        found += [str(pathlib.Path(folder, name).relative_to(root)) for name in sorted(names)]
    return found


def keep(text, spans):
    """`text` with everything blanked but the spans; line numbers stay."""
    blank = re.sub(r"[^\n]", " ", text)
    parts, at = [], 0
    for begin, end in spans:
        parts += [blank[at:begin], text[begin:end]]
        at = end
    return "".join(parts) + blank[at:]


def cpp_comments(text):
    return keep(text, [m.span("comment") for m in check_includes.COMMENT_OR_STRING.finditer(text) if m["comment"]])


def python_comments(text):
    """Comments and texts in three quotes."""
    starts = list(itertools.accumulate((len(line) for line in text.splitlines(keepends=True)), initial=0))
    return keep(text, [
        (starts[t.start[0] - 1] + t.start[1], starts[t.end[0] - 1] + t.end[1])
        for t in tokenize.generate_tokens(io.StringIO(text).readline)
        if t.type == tokenize.COMMENT or t.type == tokenize.STRING and t.string.lstrip("rR").startswith('"""')])


def hash_comments(text):
    return keep(text, [m.span(1) for m in re.finditer(r"(?:^|(?<=[ \t]))(#[^\n]*)", text, re.MULTILINE)])


def prose(name, text):
    """What of a file is written for people, at its place in the file; None where nothing is."""
    path = pathlib.PurePath(name)
    if path.suffix == ".md":
        return text
    if path.suffix in CPP or path.suffix == ".fbs" or name.endswith(".cc.in"):
        return cpp_comments(text)
    if path.suffix == ".py":
        return python_comments(text)
    if path.suffix in {".sh", ".cmake"} or path.name == "CMakeLists.txt" or text.startswith("#!"):
        return hash_comments(text)
    return None


def join_lines(text):
    """Comments that go on in the next line as one, so that a reference may be wrapped. The length stays."""
    return re.sub(r"\n([ \t]*(?://[/!]?|#|\*)?)(?=[ \t])", lambda m: " " * len(m[0]), text)


def slug(title):
    """The anchor that GitHub gives to a heading."""
    title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "")
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def alternatives(path):
    """The paths that a path with {one,another} stands for."""
    brace = re.search(r"\{([^{}]*)\}", path)
    if brace is None:
        return [path]
    return [each for choice in brace[1].split(",")
            for each in alternatives(path[:brace.start()] + choice + path[brace.end():])]


class Project:
    def __init__(self, root):
        self.root = root
        self.files = files_of(root)
        self.names = {pathlib.PurePath(file).name for file in self.files}
        self.tops = {file.split("/")[0] for file in self.files if "/" in file}

    @functools.cached_property
    def sources(self):
        """The text of the sources, with strings of several lines in one."""
        text = "\n".join((self.root / file).read_text() for file in self.files if pathlib.PurePath(file).suffix in CPP)
        return re.sub(r'"\s*\n\s*"', "", text)

    def message_problem(self, message):
        lost = [part for part in map(str.strip, message.split("...")) if part not in self.sources]
        return f"no source prints {lost[0]!r}" if lost else None

    def locate(self, reference, origin):
        """Yields the paths from the root that `reference` may mean in the file `origin`."""
        for folder in (pathlib.PurePath(origin).parent, pathlib.PurePath(), pathlib.PurePath("docs")):
            path = os.path.normpath(folder / reference)
            for candidate in (path, path + ".cc"):
                if any(self.root.glob(candidate)) if re.search(r"[*?]", path) else (self.root / candidate).exists():
                    yield candidate

    def headings(self, page):
        text = re.sub(r"^```.*?^```", "", (self.root / page).read_text(), flags=re.MULTILINE | re.DOTALL)
        return [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "") for title in HEADING.findall(text)]

    def page_problem(self, page, origin, wanted, has):
        """What is wrong with a reference to a part of a page, or None. Missing pages are found by their names."""
        located = list(self.locate(page, origin))
        return None if not located or any(has(self.headings(path)) for path in located) else f"{page} has no {wanted}"

    def path_problem(self, reference, origin):
        """What is wrong with a word that may be a path, or None."""
        if ELSEWHERE.search(reference):
            return None
        paths = alternatives(reference.rstrip("/"))
        if "/" in paths[0]:
            ours = paths[0].split("/")[0] in self.tops | {".."} or SUFFIX.search(paths[0])
            found = not ours or all(any(self.locate(path, origin)) for path in paths)
        else:
            found = not SUFFIX.search(paths[0]) or all(fnmatch.filter(self.names, path) for path in paths)
        return None if found else f"there is no {reference}"

    def link_problem(self, target, origin):
        if re.match(r"[a-z]+:", target):
            return None
        path, _, anchor = target.partition("#")
        located = os.path.normpath(pathlib.PurePath(origin).parent / path) if path else origin
        if not (self.root / located).exists():
            return f"link to {target}: there is no {located}"
        if anchor and anchor not in map(slug, self.headings(located)):
            return f"link to {target}: no heading has that anchor"
        return None


def references(project, origin, text):
    """Yields (offset, problem) of what `text`, the prose of `origin`, names in vain."""
    joined = join_lines(text)
    if origin.endswith(".md"):
        for match in LINK.finditer(text):
            yield match.start(), project.link_problem(match[1] or match[2], origin)
        for row in re.finditer(r"^\|([^|]*)\|", "".join(SEEN.findall(text)), re.MULTILINE):
            for message in re.findall(r"`([^`]+)`", row[1]):
                yield SEEN.search(text).start(), project.message_problem(message)
        text = re.sub(r"\]\([^)\s]*\)", lambda m: "]" + " " * (len(m[0]) - 1), text)  # these are done
    for match in PATH.finditer(text):
        yield match.start(), project.path_problem(match[0].rstrip(".,?+-"), origin)
    for pattern in SECTIONS:
        for match in pattern.finditer(joined):
            for number in re.findall(NUMBER, match["numbers"]):
                has = lambda titles, n=number: any(re.match(rf"{re.escape(n)}\.?\s", title) for title in titles)
                yield match.start(), project.page_problem(match["page"], origin, f"section {number}", has)
    for match in TITLES.finditer(joined):
        for title in re.findall(r'"([^"]+)"', match["titles"]):
            has = lambda titles, t=title: t.rstrip(".,") in titles
            yield match.start(), project.page_problem(match["page"], origin, f'section "{title}"', has)
    for match in ADR.finditer(joined):
        found = any(re.match(rf"docs/adr/0*{match[1]}-", file) for file in project.files)
        yield match.start(), None if found else f"there is no ADR {match[1]}"


def check(root):
    """Every problem of the project at `root`, one line each."""
    project = Project(pathlib.Path(root).resolve())
    problems = []
    for name in project.files:
        try:
            text = (project.root / name).read_text()
        except UnicodeDecodeError:
            continue
        if pathlib.PurePath(name).suffix in CPP:
            problems += [f"{name}:{i}: {len(line)} characters wide, wanted at most {WIDTH_MAX}"
                         for i, line in enumerate(text.split("\n"), 1) if len(line) > WIDTH_MAX]
        written = prose(name, text)
        if written is not None:
            problems += [f"{name}:{text.count(chr(10), 0, offset) + 1}: {problem}"
                         for offset, problem in sorted(references(project, name, written), key=lambda r: r[0])
                         if problem is not None]
    return problems


if __name__ == "__main__":
    check_includes.run(check, __doc__)
