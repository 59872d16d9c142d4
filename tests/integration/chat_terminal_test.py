#!/usr/bin/env python3
"""`outrider chat` at a terminal: lines are edited, completed and recalled, and the history is the user's alone. And what
`outrider run` tells a terminal.

usage: chat_terminal_test.py OUTRIDER
"""
import fcntl
import os
import pty
import re
import select
import stat
import subprocess
import sys
import tempfile
import termios
import time
import unittest
from pathlib import Path

HANG_S = 120  # ends a test that would hang; never a measure of speed
LEFT, UP, TAB, CTRL_A, CTRL_C, CTRL_D = "\033[D", "\033[A", "\t", "\001", "\003", "\004"


class Terminal:
    """The program on a pseudo-terminal of its own."""

    def __init__(self, state):
        self.master, slave = pty.openpty()
        environment = {**os.environ, "XDG_STATE_HOME": str(state), "TERM": "xterm", "LC_ALL": "C.UTF-8", "HOME": str(state)}
        self.process = subprocess.Popen([OUTRIDER, "chat", "--max-tokens", "12"], stdin=slave, stdout=slave, stderr=slave,
                                        env=environment, start_new_session=True,
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(slave)
        self.seen = ""

    def type(self, keys):
        """libedit draws its prompt a moment before it takes the terminal over, and a Ctrl-D between the two is lost."""
        deadline = time.monotonic() + HANG_S
        while termios.tcgetattr(self.master)[3] & termios.ICANON:
            assert time.monotonic() < deadline, self.seen
            self.read()
        os.write(self.master, keys.encode())

    def read(self):
        ready, _, _ = select.select([self.master], [], [], 0.05)
        if ready:
            try:
                self.seen += os.read(self.master, 65536).decode(errors="replace")
            except OSError:  # the other end is closed
                return

    def wait_for(self, pattern, since=0):
        deadline = time.monotonic() + HANG_S
        while not re.search(pattern, self.seen[since:], re.S):
            assert time.monotonic() < deadline, f"no {pattern!r} in {self.seen[since:]!r}"
            self.read()
        return len(self.seen)

    def end(self, keys=CTRL_D):
        self.type(keys)
        deadline = time.monotonic() + HANG_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.seen
            self.read()
        self.read()
        os.close(self.master)
        return self.process.returncode


class ChatTerminal(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.history = Path(self.folder.name) / "outrider" / "chat_history"

    def start(self):
        terminal = Terminal(self.folder.name)
        terminal.wait_for(r"> ")
        return terminal

    def ask(self, terminal, keys):
        at = len(terminal.seen)
        terminal.type(keys + "\r")
        return terminal.wait_for(r"\n.*> $", at)

    def test_lines_are_edited_and_kept(self):
        terminal = self.start()
        # "ell me a story" with a T in front of it, and an é taken back as one character.
        self.ask(terminal, "ell me a storyé\177" + CTRL_A + "T")
        self.assertEqual(self.history.read_text(), "Tell me a story\n")
        self.assertEqual(stat.S_IMODE(self.history.stat().st_mode), 0o600)
        self.ask(terminal, " Count from 3 to 5.")  # a space in front: kept nowhere
        self.assertEqual(self.history.read_text(), "Tell me a story\n")
        self.assertEqual(terminal.end(), 0)

    def test_earlier_lines_come_back(self):
        self.history.parent.mkdir()
        self.history.write_text("Count from 3 to 5.\n")
        terminal = self.start()
        self.ask(terminal, UP + LEFT + "0")
        self.assertEqual(self.history.read_text(), "Count from 3 to 5.\nCount from 3 to 50.\n")
        self.assertEqual(stat.S_IMODE(self.history.stat().st_mode), 0o600)
        self.assertEqual(terminal.end("/exit\r"), 0)

    def test_tab_completes_commands(self):
        terminal = self.start()
        at = len(terminal.seen)
        terminal.type("/h" + TAB + "\r")
        terminal.wait_for(r"/reset +forget", at)
        at = len(terminal.seen)
        terminal.type("/" + TAB)
        terminal.wait_for(r"/reset +/help +/exit", at)
        terminal.type("ex" + TAB)
        self.assertEqual(terminal.end("\r"), 0)

    def test_an_interrupt_drops_what_was_typed(self):
        terminal = self.start()
        terminal.type("half a question")
        terminal.wait_for("half a question")
        at = len(terminal.seen)
        terminal.type(CTRL_C)
        terminal.wait_for("> ", at)
        self.assertEqual(terminal.end(), 0)
        self.assertFalse(self.history.exists())


class RunTerminal(unittest.TestCase):
    def test_what_was_measured_is_for_a_terminal_alone_and_not_for_the_quiet(self):
        def said(*options):
            master, slave = pty.openpty()
            answer = subprocess.run([OUTRIDER, "run", "Hi", "--max-tokens", "8", *options], stdout=subprocess.PIPE, stderr=slave,
                                    timeout=HANG_S, check=True).stdout
            os.close(slave)
            terminal = b""
            try:
                while read := os.read(master, 65536):
                    terminal += read
            except OSError:  # the other end is closed
                os.close(master)
            return answer.strip(), terminal
        (text, loud), (same, quiet) = said(), said("--quiet")
        self.assertIn(b"speculative_tok_per_sec", loud)
        self.assertNotIn(b"_tok_per_sec", quiet)
        self.assertTrue(text)
        self.assertEqual(same, text)


if __name__ == "__main__":
    OUTRIDER = sys.argv.pop(1)
    unittest.main()
