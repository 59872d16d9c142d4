#!/usr/bin/env python3
"""Draws what `outrider run` shows at a terminal, as an SVG whose pieces appear in the order and rhythm of a real run.

    lab/terminal_picture.py build/outrider docs/rounds.svg [--prompt TEXT] [--seconds 10] [OPTION of run...]

The program runs on a pseudo-terminal. Its pieces keep their times, all stretched by the factor that the picture names,
so that the answer takes --seconds. The picture loads nothing, and stands still where a reader prefers that.
"""
import argparse
import html
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl
from pathlib import Path

COLUMNS, SIZE, ADVANCE, LEADING, MARGIN = 84, 15, 9.02, 23, 24
CLASSES = {"32": "accepted", "2;9": "rejected", "2": "aside"}
STYLE = """
text { font: 15px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #e6edf3; white-space: pre; }
.accepted { fill: #7ee29b; } .rejected { fill: #c98080; text-decoration: line-through; } .aside { fill: #8b949e; }
.typed { fill: #79c0ff; }
.piece { animation: appear .05s linear both; } @keyframes appear { from { opacity: 0 } to { opacity: 1 } }
@media (prefers-reduced-motion: reduce) { .piece { animation: none } }
"""


def record(command):
    """What the command writes to a terminal: (seconds, bytes) of each piece, with the piece's end where a style ends."""
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    process = subprocess.Popen(command, stdout=slave, stderr=slave, stdin=subprocess.DEVNULL,
                               env={**environment, "TERM": "xterm-256color"})
    os.close(slave)
    pieces = []
    while True:
        try:
            read = os.read(master, 65536)
        except OSError:  # the other end is closed
            read = b""
        if not read:
            break
        pieces.append((time.monotonic(), read))
    os.close(master)
    if process.wait() != 0:
        sys.exit(f"{' '.join(command)}: exit status {process.returncode}\n{b''.join(p for _, p in pieces).decode()}")
    return pieces


def styled(pieces):
    """(seconds, class, text) of each run of characters in one style."""
    style, rest, progress = "", b"", False
    for at, piece in pieces:
        text = (rest + piece).decode(errors="ignore")
        rest = (rest + piece)[len(text.encode()):]
        for part in re.split(r"(\x1b\[[\d;]*[mK])", text.replace("\r", "")):
            code = re.fullmatch(r"\x1b\[([\d;]*)([mK])", part)
            if code:
                progress = code[2] == "K"  # a line that says how far loading has come
                style = CLASSES.get(code[1], "") if not progress else style
                continue
            if progress:
                part, progress = part.partition("\n")[2], "\n" not in part
            if part:
                yield at, style, part


def words(pieces):
    """The same in parts that may stand on a line of their own."""
    for at, style, text in pieces:
        for part in re.findall(r"\n|[^\S\n]*[^\s]+[^\S\n]*|[^\S\n]+", text):
            yield at, style, part


def laid_out(pieces):
    """(line, column, seconds, class, text), broken at words."""
    line = column = 0
    for at, style, text in words(pieces):
        if text == "\n":
            line, column = line + 1, 0
            continue
        if column + len(text.rstrip()) > COLUMNS:
            line, column, text = line + 1, 0, text.lstrip()
        if text:
            yield line, column, at, style, text
            column += len(text)


def picture(command_text, pieces, seconds):
    placed = list(laid_out(styled(pieces)))
    start, end = placed[0][2], placed[-1][2]
    factor = seconds / max(end - start, 1e-3)
    lines = placed[-1][0] + 1
    width, height = 2 * MARGIN + COLUMNS * ADVANCE, 2 * MARGIN + (lines + 3) * LEADING

    def text(line, column, css, content, delay=None):
        animation = "" if delay is None else f' style="animation-delay:{delay:.2f}s"'
        return (f'<text x="{MARGIN + column * ADVANCE:.1f}" y="{MARGIN + SIZE + line * LEADING}" class="{css}"{animation}'
                f' textLength="{len(content) * ADVANCE:.1f}" xml:space="preserve">{html.escape(content)}</text>')

    body = [text(0, 0, "aside", "$"), text(0, 2, "typed", command_text)]
    body += [text(line + 1, column, f"piece {css}".strip(), content, 1 + factor * (at - start))
             for line, column, at, css, content in placed]
    body.append(text(lines + 2, 0, "aside", f"green: accepted drafts; struck: rejected; white: the target's own. "
                                            f"Slowed {factor:.0f}x."))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">\n'
            f"<title>{html.escape(command_text)}</title>\n<style>{STYLE}</style>\n"
            f'<rect width="100%" height="100%" rx="10" fill="#0d1117"/>\n' + "\n".join(body) + "\n</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("outrider")
    parser.add_argument("svg", type=Path)
    parser.add_argument("--prompt", default="Write a short story about a fox.")
    parser.add_argument("--seconds", type=float, default=10)
    arguments, options = parser.parse_known_args()
    pieces = record([arguments.outrider, "run", arguments.prompt, *options])
    shown = " ".join(["outrider run", f'"{arguments.prompt}"', *options])
    arguments.svg.write_text(picture(shown, pieces, arguments.seconds))


if __name__ == "__main__":
    main()
