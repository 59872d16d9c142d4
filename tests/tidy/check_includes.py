#!/usr/bin/env python3
"""Rejects what CMake cannot: an #include against the dependency diagram, a library outside its
room, I/O or a clock in the protocol, and a file that nobody builds or includes.

The diagram is not repeated here. It is the PUBLIC and PRIVATE edges that the rooms' CMakeLists.txt
give to outrider_room() and target_link_libraries(). A room is the directory of its CMakeLists.txt.

usage: check_includes.py PROJECT_ROOT
"""

import pathlib
import re
import sys

ROOM_PATTERNS = ["schemas", "common/*", "drafter-node", "verifier-node", "coordinator-node", "launch"]
INCLUDER_PATTERNS = ROOM_PATTERNS + ["tests", "benchmarks"]  # Who may use a header.

NEVER_INCLUDE = {("drafter-node", "verifier-node"), ("verifier-node", "drafter-node")}

# (what, pattern of the header, predicate of the including file: may it?)
CONFINED = [
    ("ZeroMQ or FlatBuffers", re.compile(r"^(zmq[._]|flatbuffers/)|_generated\.h$"),
     lambda file: file.startswith(("common/transport/", "schemas/"))),
    ("cpp-httplib", re.compile(r"^httplib\.h$"), lambda file: file == "coordinator-node/http_server.cc"),
    ("prometheus-cpp", re.compile(r"^prometheus/"), lambda file: file == "coordinator-node/server_metrics.cc"),
    ("oneDNN", re.compile(r"^(oneapi/dnnl/|dnnl[._])"),
     lambda file: file.startswith("common/kernels/") and "onednn" in pathlib.Path(file).name),
]

PURE_ROOM = "common/protocol"
IMPURE_HEADER = re.compile(
    r"^(thread|mutex|shared_mutex|condition_variable|future|semaphore|latch|barrier|fstream|iostream"
    r"|unistd\.h|poll\.h|pthread\.h|sys/.*|netinet/.*|arpa/.*|netdb\.h)$")
CLOCK_READ = re.compile(r"\bnow\s*\(\s*\)")

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.MULTILINE)
# A comment, or a string that may look like one.
COMMENT_OR_STRING = re.compile(
    r'R"(?P<delimiter>[^()\s]*)\(.*?\)(?P=delimiter)"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\''
    r"|(?P<comment>//[^\n]*|/\*.*?\*/)", re.DOTALL)
COMMAND = re.compile(r"(\w+)\s*\(([^()]*(?:\([^()]*\)[^()]*)*)\)")


def without_comments(text):
    """The C++ text with its comments blanked; line numbers stay."""
    return COMMENT_OR_STRING.sub(
        lambda m: re.sub(r"[^\n]", " ", m[0]) if m["comment"] else m[0], text)


def files_below(root, patterns, suffixes):
    return sorted(file for pattern in patterns for top in root.glob(pattern)
                  for file in top.rglob("*") if file.suffix in suffixes and file.is_file())


class Diagram:
    """The rooms, their edges and the sources that CMake builds."""

    def __init__(self, root):
        self.directory = {}  # target name without outrider:: -> room directory
        self.public, self.direct = {}, {}  # room directory -> set of target names
        self.sources = set()
        self.rooms = sorted(str(path.relative_to(root)) for pattern in ROOM_PATTERNS
                            for path in root.glob(pattern) if path.is_dir())
        for file in files_below(root, ROOM_PATTERNS, {".txt"}):
            if file.name == "CMakeLists.txt":
                self._read(root, file)

    def _read(self, root, file):
        folder = file.parent
        room = self.room_of(str(file.relative_to(root)))
        public, direct = self.public.setdefault(room, set()), self.direct.setdefault(room, set())
        text = re.sub(r"#[^\n]*", "", file.read_text())
        for command, arguments in COMMAND.findall(text):
            words = [word.strip('"') for word in arguments.split()]
            if command == "outrider_room":
                self.directory[words[0]] = room
            if command == "add_library" and "ALIAS" in words and words[0].startswith("outrider::"):
                self.directory[words[0].removeprefix("outrider::")] = room
                continue
            visible = command == "outrider_room"
            for word in words:
                if word in ("PUBLIC", "INTERFACE"):
                    visible = True
                elif word == "PRIVATE":
                    visible = False
                elif word.startswith("outrider::"):
                    direct.add(word.removeprefix("outrider::"))
                    if visible:
                        public.add(word.removeprefix("outrider::"))
                elif word.endswith(".cc"):
                    word = re.sub(r"\$\{CMAKE_CURRENT_(SOURCE|LIST)_DIR\}", str(folder), word)
                    word = re.sub(r"\$\{(PROJECT|CMAKE)_SOURCE_DIR\}", str(root), word)
                    self.sources.add((folder / word).resolve())

    def room_of(self, path):
        """The room that holds a path relative to the root, or None."""
        return next((room for room in self.rooms if path.startswith(room + "/")), None)

    def reachable(self, room):
        """The rooms that `room` may include: its own edges, and the PUBLIC edges of those."""
        found, queue = {room}, [self.directory.get(name) for name in self.direct.get(room, ())]
        while queue:
            other = queue.pop()
            if other is not None and other not in found:
                found.add(other)
                queue += [self.directory.get(name) for name in self.public.get(other, ())]
        return found

    def problems(self):
        for room, names in sorted(self.direct.items()):
            for name in sorted(names - self.directory.keys()):
                yield f"{room}/CMakeLists.txt: no room makes outrider::{name}"
        # Static libraries may link in a circle without a word from CMake.
        ordered, remaining = set(), set(self.direct)
        while remaining:
            free = {room for room in remaining
                    if {self.directory.get(name, room) for name in self.direct[room]} - {room} <= ordered}
            if not free:
                yield f"the edges of these rooms form a circle: {', '.join(sorted(remaining))}"
                return
            ordered |= free
            remaining -= free


def check(root):
    """Every problem of the project at `root`, one line each."""
    root = pathlib.Path(root).resolve()
    diagram = Diagram(root)
    problems = list(diagram.problems())
    reach = {room: diagram.reachable(room) for room in diagram.rooms}

    included = set()
    for file in files_below(root, INCLUDER_PATTERNS, {".cc", ".h", ".cpp", ".hpp"}):
        name = str(file.relative_to(root))
        room = diagram.room_of(name)
        text = without_comments(file.read_text())
        for match in INCLUDE.finditer(text):
            header = match[1]
            where = f"{name}:{text.count(chr(10), 0, match.start(1)) + 1}"
            included.add(header)
            if room is None:
                continue  # Tests and benchmarks may include everything.
            problems += [f"{where}: {what} header <{header}> outside its room"
                         for what, pattern, allowed in CONFINED
                         if pattern.search(header) and not allowed(name)]
            if room == PURE_ROOM and IMPURE_HEADER.search(header):
                problems.append(f"{where}: <{header}> in {PURE_ROOM}, which does no I/O and starts no thread")
            target = diagram.room_of(header)
            if (room, target) in NEVER_INCLUDE:
                problems.append(f"{where}: {room} and {target} never include each other")
            elif target is not None and target not in reach[room]:
                problems.append(f"{where}: {room} includes {header}, but its CMakeLists.txt has no edge to {target}")
            elif target is None and ((file.parent / header).exists() or (root / header).exists()):
                problems.append(f"{where}: \"{header}\": write an include of a room from the project's root")
        if room == PURE_ROOM:
            problems += [f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {PURE_ROOM} reads a clock"
                         for match in CLOCK_READ.finditer(text)]

    for file in files_below(root, ROOM_PATTERNS, {".cc", ".h"}):
        name = str(file.relative_to(root))
        if file.suffix == ".cc" and file not in diagram.sources:
            problems.append(f"{name}: in no CMakeLists.txt of a room")
        if file.suffix == ".h" and name not in included:
            problems.append(f"{name}: included by nobody")
    return problems


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    problems = check(sys.argv[1])
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
