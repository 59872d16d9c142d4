#!/usr/bin/env python3
"""`outrider chat` at a terminal: lines are edited, completed and recalled, and the history is the user's alone. And what
other commands tell a terminal, and a pipe that nobody reads.

usage: chat_terminal_test.py OUTRIDER
"""
import fcntl
import json
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
from xml.etree import ElementTree

SVG = "{http://www.w3.org/2000/svg}"
PICTURE = Path(__file__).resolve().parents[2] / "lab/terminal_picture.py"
HANG_S = 600  # ends a test that would hang; never a measure of speed
LEFT, UP, TAB, CTRL_A, CTRL_C, CTRL_D = "\033[D", "\033[A", "\t", "\001", "\003", "\004"


class Terminal:
    """The program on a pseudo-terminal of its own."""

    def __init__(self, state, *options):
        self.master, slave = pty.openpty()
        environment = {**os.environ, "XDG_STATE_HOME": str(state), "TERM": "xterm", "LC_ALL": "C.UTF-8", "HOME": str(state)}
        self.process = subprocess.Popen([OUTRIDER, "chat", *(options or ("--max-tokens", "12"))], stdin=slave, stdout=slave, stderr=slave,
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

    def start(self, *options):
        terminal = Terminal(self.folder.name, *options)
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
        self.assertEqual(terminal.end("/exit \r"), 0)

    def test_tab_completes_commands(self):
        terminal = self.start()
        at = len(terminal.seen)
        terminal.type("/h" + TAB + "\r")
        terminal.wait_for(r"/reset +forget", at)
        at = len(terminal.seen)
        terminal.type("/" + TAB)
        terminal.wait_for(r"/set +/save +/reset +/help +/exit", at)
        terminal.type("ex" + TAB)
        self.assertEqual(terminal.end("\r"), 0)

    def test_the_model_is_named_and_figures_are_there_to_be_asked_for(self):
        terminal = self.start()
        self.assertRegex(terminal.seen, r"nano \(a demo model\), \w+, \w+, \d+ threads?, drafts: auto")
        at = len(terminal.seen)
        terminal.type("/stats\r")
        terminal.wait_for("no answer yet", at)
        self.ask(terminal, "Tell me a story")
        self.assertIn("(cut off after 12 tokens: --max-tokens)", terminal.seen)
        at = len(terminal.seen)
        terminal.type("/stats\r")
        terminal.wait_for(r"verifying +[\d.]+ ms a round", at)
        self.assertEqual(terminal.end(), 0)

    def test_each_answer_is_followed_by_what_it_brought(self):
        terminal = self.start()
        self.ask(terminal, "/set draft-length 0")
        self.ask(terminal, "Tell me a story")
        self.assertRegex(terminal.seen, r"\x1b\[2m[\d.]+ tok/s, no drafts")
        self.ask(terminal, "/set draft-length 4")
        self.ask(terminal, "Tell me a story about a fox")
        self.assertRegex(terminal.seen, r"tok/s \([\d.]+ times plain\)")
        self.assertEqual(terminal.end(), 0)

    def test_settings_change_later_answers_and_a_wrong_one_changes_nothing(self):
        terminal = self.start()
        for setting, said in (("max-tokens 3", ""), ("temprature 1", "no option --temprature; '--temperature' is one"),
                              ("temperature hot", "--temperature is 'hot', wanted a number"),
                              ("top-k 5", "need a --temperature above 0"), ("", "--repetition-penalty")):
            at = len(terminal.seen)
            self.ask(terminal, "/set " + setting)
            self.assertIn(said, terminal.seen[at:])
        self.ask(terminal, "Tell me a story")
        self.assertIn("(cut off after 3 tokens: --max-tokens)", terminal.seen)
        self.assertEqual(terminal.end(), 0)

    def test_a_question_of_several_lines_and_the_system_message_are_saved(self):
        terminal = self.start()
        self.ask(terminal, "/set system Be kind.")
        terminal.type('"""/help me\r')
        terminal.wait_for(r"\.\.\. ")
        self.ask(terminal, 'to count"""')
        file = Path(self.folder.name) / "talk.json"
        self.ask(terminal, f"/save {file}")
        self.ask(terminal, f"/save {file}")  # what it wrote itself
        messages = json.loads(file.read_text())["messages"]
        self.assertEqual([(m["role"], m["content"].strip()) for m in messages[:2]],
                         [("system", "Be kind."), ("user", "/help me\nto count")])
        self.assertEqual(messages[2]["role"], "assistant")
        other = Path(self.folder.name) / "other.json"
        other.write_text("mine")
        self.ask(terminal, f"/save {other}")
        self.assertIn("exists; /save overwrites only", terminal.seen)
        self.assertEqual(other.read_text(), "mine")
        self.assertEqual(terminal.end(), 0)

    def test_rounds_light_up_unless_plain_text_is_wanted(self):
        draft = ("--draft-length", "4", "--no-governor", "--max-tokens", "60")
        terminal = self.start(*draft)
        self.ask(terminal, "Write a short story about a fox.")
        self.assertEqual(terminal.end(), 0)
        self.assertRegex(terminal.seen, ACCEPTED)
        terminal = self.start(*draft, "--plain")
        self.ask(terminal, "Write a short story about a fox.")
        self.assertEqual(terminal.end(), 0)
        self.assertNotRegex(terminal.seen, ACCEPTED)

    def test_an_interrupt_drops_what_was_typed(self):
        terminal = self.start()
        terminal.type("half a question")
        terminal.wait_for("half a question")
        at = len(terminal.seen)
        terminal.type(CTRL_C)
        terminal.wait_for("> ", at)
        self.assertEqual(terminal.end(), 0)
        self.assertFalse(self.history.exists())


ACCEPTED, REJECTED = r"\x1b\[32m[^\x1b]+\x1b\[0m", r"\x1b\[2;9m[^\x1b]*\x1b\[0m"


def said_to_terminal(*words, both=False, **variables):
    """What a command prints to a pipe, and to standard error, which is a terminal.

    both: standard output is that terminal too; then nothing is printed to a pipe
    """
    master, slave = pty.openpty()
    printed = subprocess.run([OUTRIDER, *words], stdout=slave if both else subprocess.PIPE, stderr=slave, timeout=HANG_S,
                             check=True, env={**os.environ, "TERM": "xterm", **variables}).stdout or b""
    os.close(slave)
    terminal = b""
    try:
        while read := os.read(master, 65536):
            terminal += read
    except OSError:  # the other end is closed
        os.close(master)
    return printed.strip(), terminal


class RunTerminal(unittest.TestCase):
    STORY = ("run", "Write a short story about a fox.", "--draft-length", "6", "--no-governor", "--max-tokens", "80")

    def test_a_terminal_shows_who_wrote_which_part_and_the_text_stays_the_same(self):
        text, _ = said_to_terminal(*self.STORY)
        _, shown = said_to_terminal(*self.STORY, both=True)
        shown = shown.decode().replace("\r\n", "\n")
        answer = re.split(r"drafts: 6\S*\n", shown)[1]
        self.assertRegex(answer, ACCEPTED)
        self.assertRegex(answer, REJECTED)
        self.assertIn(text.decode(), re.sub(r"\x1b\[[\d;]*m", "", re.sub(REJECTED, "", answer)))
        self.assertRegex(answer, r"\x1b\[2m\n[\d.]+ tok/s, \d+ of \d+ drafts accepted")

    def test_plain_text_is_printed_where_it_is_wanted_or_nothing_else_can_be_shown(self):
        for options, variables in ((["--plain"], {}), (["--quiet"], {}), ([], {"NO_COLOR": "1"}), ([], {"TERM": "dumb"})):
            _, shown = said_to_terminal(*self.STORY, *options, both=True, **variables)
            self.assertNotRegex(shown.decode(), ACCEPTED)
            self.assertNotRegex(shown.decode(), REJECTED)

    def test_what_was_measured_is_for_a_terminal_alone_and_not_for_the_quiet(self):
        def said(*options):
            return said_to_terminal("run", "Tell me a story", "--max-tokens", "8", *options)
        (text, loud), (same, quiet) = said(), said("--quiet")
        self.assertIn(b" tok/s", loud)
        self.assertIn(b"\x1b[2mnano (a demo model), ", loud)
        self.assertIn(b"(cut off after 8 tokens: --max-tokens)", loud)
        for figure in (b"tok/s", b"nano (a demo model)", b"cut off"):
            self.assertNotIn(figure, quiet)
        self.assertTrue(text)
        self.assertEqual(same, text)

    def test_no_color_is_honoured(self):
        _, loud = said_to_terminal("run", "Hi", "--max-tokens", "2", NO_COLOR="1")
        self.assertIn(b"nano (a demo model), ", loud)
        self.assertNotIn(b"\x1b[2m", loud)


class Picture(unittest.TestCase):
    def test_the_readmes_picture_shows_the_whole_text_of_a_run_and_its_rounds(self):
        text, _ = said_to_terminal(*RunTerminal.STORY)
        with tempfile.TemporaryDirectory() as folder:
            svg = Path(folder) / "rounds.svg"
            subprocess.run([PICTURE, OUTRIDER, svg, *RunTerminal.STORY[2:]], check=True, timeout=HANG_S)
            pieces = [(piece.get("class").split(), piece.text) for piece in ElementTree.parse(svg).getroot().iter(SVG + "text")]
        self.assertTrue(any("accepted" in style for style, _ in pieces))
        self.assertTrue(any("rejected" in style for style, _ in pieces))
        answer = "".join(piece for style, piece in pieces if "piece" in style and not {"rejected", "aside"} & set(style))
        self.assertEqual("".join(answer.split()), "".join(text.decode().split()))


class LongCommands(unittest.TestCase):
    def test_bench_says_how_far_it_is(self):
        # Every forward pass takes 100 ms longer: an answer more than the two seconds that nothing is said of.
        printed, loud = said_to_terminal("bench", "pair", "--draft-lengths", "1", "--repeat", "1", "--max-tokens", "22",
                                         "--prompt", "Tell me a story about a lighthouse.", "--added-verify-us", "100000")
        self.assertIn(b"bench pair, questions: 1 of 1", loud)
        self.assertLess(max(map(len, printed.splitlines())), 110)


class Pipes(unittest.TestCase):
    def test_a_pipe_that_nobody_reads_is_no_error(self):
        for words in (["completion", "zsh"], ["--version"], ["run", "--help"]):
            reader, writer = os.pipe()
            os.close(reader)
            ended = subprocess.run([OUTRIDER, *words], stdout=writer, stderr=subprocess.PIPE, timeout=HANG_S)
            os.close(writer)
            self.assertEqual((ended.returncode, ended.stderr), (141, b""), words)


if __name__ == "__main__":
    OUTRIDER = sys.argv.pop(1)
    unittest.main()
