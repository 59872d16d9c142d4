#!/usr/bin/env python3
"""Rejects what CMake cannot: an #include against the dependency diagram, a library outside its
room, I/O or a clock in the protocol, a file that nobody builds or includes, and a function that is too long.

The diagram is not repeated here. It is the PUBLIC and PRIVATE edges that the rooms' CMakeLists.txt
give to outrider_room() and target_link_libraries(). A header belongs to the target that compiles the .cc
of its name or lists it, or else to the only library of its folder.

usage: check_includes.py PROJECT_ROOT
"""

import pathlib
import re
import sys

WORKERS = ("drafter-node", "verifier-node", "encoder-node")
ROOM_PATTERNS = ["schemas", "common/base", "common/os", "common/compute/*", "common/model/*", "common/decoding/*",
                 "common/wire/*", "common/http", "common/hub", "common/media", "common/pair", "common/client", "drafter-node", "verifier-node",
                 "encoder-node", "coordinator-node", "server", "batch", "launch", "lab", "embed"]
INCLUDER_PATTERNS = ROOM_PATTERNS + ["tests"]  # Who may use a header.

NEVER_INCLUDE = {(a, b) for a in WORKERS for b in WORKERS if a != b}

# (what, pattern of the header, predicate of the including file: may it?)
CONFINED = [
    ("ZeroMQ or FlatBuffers", re.compile(r"^(zmq[._]|flatbuffers/)|_generated\.h$"),
     lambda file: file.startswith(("common/wire/transport/", "schemas/"))),
    ("Boost", re.compile(r"^boost/"),
     lambda file: file in ("server/http_server.cc", "common/http/http_client.cc", "common/http/waiting_socket.h")),
    ("OpenSSL", re.compile(r"^openssl/"), lambda file: file in ("server/api_keys.cc", "common/hub/digest.cc", "common/http/tls.cc")),
    ("prometheus-cpp", re.compile(r"^prometheus/"), lambda file: file == "server/server_metrics.cc"),
    ("CLI11", re.compile(r"^CLI/"), lambda file: file == "launch/command_line.h"),
    ("spdlog", re.compile(r"^spdlog/"), lambda file: file.startswith("common/os/")),
    ("XGrammar", re.compile(r"^(xgrammar|dlpack)/"), lambda file: file.startswith("common/decoding/grammar/")),
    ("libpng", re.compile(r"^png\.h$"), lambda file: file == "common/model/vision/decode_png.cc"),
    ("libjpeg", re.compile(r"^(jpeglib|jerror|turbojpeg)\.h$"), lambda file: file == "common/model/vision/decode_jpeg.cc"),
    ("libsndfile", re.compile(r"^sndfile\.h"), lambda file: file == "common/model/audio/decode_wav_flac_ogg.cc"),
    ("libmpg123", re.compile(r"^mpg123\.h"), lambda file: file == "common/model/audio/decode_mp3.cc"),
    ("libsamplerate", re.compile(r"^samplerate\.h"), lambda file: file == "common/model/audio/sound.cc"),
    ("FFmpeg", re.compile(r"^(libav|libsw)"), lambda file: file == "common/model/vision/decode_video.cc"),
    ("libwebp", re.compile(r"^webp/"), lambda file: file == "common/model/vision/decode_webp.cc"),
    ("oneDNN", re.compile(r"^(oneapi/dnnl/|dnnl[._])"),
     lambda file: file.startswith("common/compute/kernels/") and "onednn" in pathlib.Path(file).name),
]

PURE_TARGETS = {"messages", "client_core", "coordinator_core", "drafter_core", "encoder_core", "verifier_core"}
IMPURE_HEADER = re.compile(
    r"^(thread|mutex|shared_mutex|condition_variable|future|semaphore|latch|barrier|fstream|iostream"
    r"|unistd\.h|poll\.h|pthread\.h|sys/.*|netinet/.*|arpa/.*|netdb\.h)$")
CLOCK_READ = re.compile(r"\bnow\s*\(\s*\)")

FUNCTION_LINES_MAX = 80
TYPE_OR_NAMESPACE = re.compile(r" *(namespace|extern|class|struct|union|enum)\b")

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


def functions(text):
    """Yields (first line, number of lines) of the functions, and of the blocks in them, of a text that clang-format
    wrote without comments: one ends at a brace that is as far to the right as the line it began with."""
    lines = text.splitlines()
    for end, line in enumerate(lines):
        if re.fullmatch(r" *} *", line):
            inside = (" " * (line.index("}") + 1), "#")
            start = end - 1
            while start > 0 and (not lines[start].strip() or lines[start].startswith(inside)):
                start -= 1
            if not TYPE_OR_NAMESPACE.match(lines[start]):
                yield start + 1, end - start + 1


def files_below(root, patterns, suffixes):
    return sorted(file for pattern in patterns for top in root.glob(pattern)
                  for file in top.rglob("*") if file.suffix in suffixes and file.is_file())


def bare(target):
    """outrider::model, outrider_model and outrider_room(model ...) are one target: model."""
    return re.sub(r"^outrider(::|_)", "", target)


class Diagram:
    """The targets, their edges and the files that belong to them."""

    def __init__(self, root):
        self.public, self.direct = {}, {}  # target -> the targets on its PUBLIC edges, on all of its edges
        self.owner = {}  # file, relative to the root -> target
        self.libraries = {}  # folder, relative to the root -> its libraries
        self.rooms = sorted(str(path.relative_to(root)) for pattern in ROOM_PATTERNS
                            for path in root.glob(pattern) if path.is_dir())
        for file in files_below(root, ROOM_PATTERNS, {".txt"}):
            if file.name == "CMakeLists.txt":
                self._read(root, file)
        for file in files_below(root, ROOM_PATTERNS, {".h"}):
            name = str(file.relative_to(root))
            owner = self.owner.get(name, self.owner.get(name.removesuffix(".h") + ".cc"))
            libraries = self.libraries.get(str(file.parent.relative_to(root)), ())
            if owner is None and len(libraries) == 1:
                owner = libraries[0]
            self.owner[name] = owner

    def _read(self, root, file):
        folder = str(file.parent.relative_to(root))
        text = re.sub(r"#[^\n]*", "", file.read_text())
        for command, arguments in COMMAND.findall(text):
            words = [word.strip('"') for word in arguments.split()]
            if "ALIAS" in words or command not in (
                    "outrider_room", "add_library", "add_executable", "target_sources", "target_link_libraries"):
                continue
            target = bare(words[0])
            public, direct = self.public.setdefault(target, set()), self.direct.setdefault(target, set())
            if command in ("outrider_room", "add_library"):
                self.libraries.setdefault(folder, []).append(target)
            visible, keyword = command == "outrider_room", None
            for word in words[1:]:
                if word.isupper():
                    keyword = word
                elif keyword == "COMMANDS":  # cmake/OutriderRoom.cmake
                    word = f"command_{word}.cc"
                if word in ("PUBLIC", "INTERFACE"):
                    visible = True
                elif word == "PRIVATE":
                    visible = False
                elif word.startswith("outrider::"):
                    direct.add(bare(word))
                    if visible:
                        public.add(bare(word))
                elif word.endswith((".cc", ".h")):
                    self.owner[f"{folder}/{word}"] = target

    def room_of(self, path):
        """The folder that holds a path relative to the root, or None."""
        return next((room for room in self.rooms if path.startswith(room + "/")), None)

    def reachable(self, target):
        """The targets whose headers `target` may include: its own edges, and the PUBLIC edges of those."""
        found, queue = {target}, list(self.direct.get(target, ()))
        while queue:
            other = queue.pop()
            if other not in found:
                found.add(other)
                queue += self.public.get(other, ())
        return found

    def problems(self):
        for target, names in sorted(self.direct.items()):
            for name in sorted(names - self.direct.keys()):
                yield f"the edge of {target} to outrider::{name}: no room makes it"
        for name, owner in sorted(self.owner.items()):
            if owner is None:
                yield f"{name}: of which target of its folder? Name it beside the sources"
        # Static libraries may link in a circle without a word from CMake.
        ordered, remaining = set(), set(self.direct)
        while remaining:
            free = {target for target in remaining if self.direct[target] & self.direct.keys() <= ordered}
            if not free:
                yield f"the edges of these targets form a circle: {', '.join(sorted(remaining))}"
                return
            ordered |= free
            remaining -= free


def check(root):
    """Every problem of the project at `root`, one line each."""
    root = pathlib.Path(root).resolve()
    diagram = Diagram(root)
    problems = list(diagram.problems())
    reach = {target: diagram.reachable(target) for target in diagram.direct}

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
                continue  # Tests may include everything.
            problems += [f"{where}: {what} header <{header}> outside its room"
                         for what, pattern, allowed in CONFINED
                         if pattern.search(header) and not allowed(name)]
            if diagram.owner.get(name) in PURE_TARGETS and IMPURE_HEADER.search(header):
                problems.append(f"{where}: <{header}> in {diagram.owner[name]}, which does no I/O and starts no thread")
            own, target, other = diagram.owner.get(name), diagram.owner.get(header), diagram.room_of(header)
            if (room, other) in NEVER_INCLUDE:
                problems.append(f"{where}: {room} and {other} never include each other")
            elif own is not None and target is not None and target not in reach[own]:
                problems.append(f"{where}: {own} includes {header}, but its CMakeLists.txt has no edge to {target}")
            elif other is None and ((file.parent / header).exists() or (root / header).exists()):
                problems.append(f"{where}: \"{header}\": write an include of a room from the project's root")
        if diagram.owner.get(name) in PURE_TARGETS:
            problems += [f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {diagram.owner[name]} reads a clock"
                         for match in CLOCK_READ.finditer(text)]

    for file in files_below(root, INCLUDER_PATTERNS, {".cc", ".h", ".inc"}):
        name = str(file.relative_to(root))
        problems += [f"{name}:{line}: a function of {count} lines, wanted at most {FUNCTION_LINES_MAX}"
                     for line, count in functions(without_comments(file.read_text())) if count > FUNCTION_LINES_MAX]
    for file in files_below(root, ROOM_PATTERNS, {".cc", ".h", ".inc"}):
        name = str(file.relative_to(root))
        if file.suffix == ".cc" and name not in diagram.owner:
            problems.append(f"{name}: in no CMakeLists.txt of its folder")
        if file.suffix == ".h" and name not in included:
            problems.append(f"{name}: included by nobody")
    return problems


def run(check_root, usage):
    """Prints the problems of the tree named on the command line; exits with 1 if there are any."""
    if len(sys.argv) != 2:
        sys.exit(usage)
    problems = check_root(sys.argv[1])
    for problem in problems:
        print(problem)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    run(check, __doc__)
