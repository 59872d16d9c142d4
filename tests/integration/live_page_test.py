#!/usr/bin/env python3
"""The live page in headless Chromium: somebody types a question and sees the rounds of its answer.

usage: live_page_test.py OUTRIDER [SCREENSHOT.png]

The picture in docs/live-page.png is such a screenshot; with a page that has changed since, the test fails until it is
made anew. So it does with docs/rounds.svg, the picture of a terminal. With OUTRIDER_PICTURES=FOLDER, this test and
report_page_test.py write there what a person should look at: the page, the report and the terminal.
Exit 77: there is no Chromium, and only the docs' pictures and the page's size were tested.
"""
import base64
import contextlib
import hashlib
import html
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zlib

KEY = "secret"
QUESTION = "Write a short story about a fox."
HANG_S = 600
SOURCE = pathlib.Path(__file__).resolve().parents[2]
GOLDENS = SOURCE / "tests/goldens"
PAGE = SOURCE / "server/page/index.html"
PICTURE = SOURCE / "docs/live-page.png"
PAGE_BYTES_MAX = 150_000
AXE = "4.14.1", "e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745"  # axe-core, with the SHA-256 of npm's archive
RED_CIRCLE = GOLDENS / "nano-pictures/red_circle.png"


class Chromium:
    """One tab of a browser, driven by the DevTools protocol: JSON with a zero byte after it, on its descriptors 3 and 4."""

    def __init__(self, program):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        commands, self.commands = os.pipe()
        self.answers, answers = os.pipe()
        self.process = subprocess.Popen(
            # The descriptors must be just these two.
            ["bash", "-c", f'exec 13<&{commands} 14>&{answers}; exec 3<&13 4>&14 13<&- 14>&-; exec "$@"', "chromium", program, "--headless=new", "--no-sandbox",
             "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-pipe", f"--user-data-dir={self.profile.name}", "about:blank"],
            pass_fds=(commands, answers), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(commands)
        os.close(answers)
        self.received = b""
        self.count = 0
        self.session = None
        self.complaints = []  # what a person would see in red in the console
        self.urls = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")
        self.size(1280, 900)

    def next_message(self):
        while b"\0" not in self.received:
            piece = os.read(self.answers, 1 << 16)
            if not piece:
                raise RuntimeError("chromium has ended")
            self.received += piece
        message, self.received = self.received.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **params):
        self.count += 1
        request = {"id": self.count, "method": method, "params": params}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.commands, json.dumps(request).encode() + b"\0")
        while True:
            message = self.next_message()
            if message.get("id") == self.count:
                assert "error" not in message, (method, message)
                return message["result"]
            event, details = message.get("method"), message.get("params", {})
            if event == "Runtime.exceptionThrown":
                self.complaints.append(details["exceptionDetails"]["exception"].get("description"))
            if event == "Log.entryAdded" and details["entry"]["level"] == "error":
                self.complaints.append(details["entry"]["text"])
            if event == "Network.requestWillBeSent":
                self.urls.append(details["request"]["url"])

    def evaluate(self, script):
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, (script, result["exceptionDetails"])
        return result["result"].get("value")

    def wait_for(self, script):
        deadline = time.monotonic() + HANG_S
        while not self.evaluate(script):
            assert time.monotonic() < deadline, script + " is false for ever; the page says:\n" + self.evaluate("document.body.innerText")
            time.sleep(0.05)

    def type_into(self, element, text):
        self.evaluate(f"document.getElementById('{element}').focus()")
        self.call("Input.insertText", text=text)

    def press(self, key):
        code = {"Enter": 13, "Tab": 9, "Escape": 27, "ArrowLeft": 37}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=code, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)

    def size(self, width, height, phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if phone else 1, mobile=phone)

    def scheme(self, light_or_dark):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": light_or_dark}])

    def screenshot(self, path, note=b""):
        png = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        head, end = png[:33], png[33:]  # the signature and the first chunk
        if note:
            note = b"tEXt" + b"page\0" + note
            note = struct.pack(">I", len(note) - 4) + note + struct.pack(">I", zlib.crc32(note))
        pathlib.Path(path).write_bytes(head + note + end)

    def pictures(self, name):
        """At a desk and on a phone, light and dark, for a person to look at: into the folder OUTRIDER_PICTURES, if it is set."""
        folder = os.environ.get("OUTRIDER_PICTURES")
        if not folder:
            return
        for screen, width, height in (("desktop", 1280, 900), ("phone", 390, 844)):
            self.size(width, height, screen == "phone")
            for scheme in ("light", "dark"):
                self.scheme(scheme)
                self.evaluate("new Promise(done => setTimeout(done, 400))")  # what moves has come to its end
                self.screenshot(pathlib.Path(folder) / f"{name}-{screen}-{scheme}.png")
        self.size(1280, 900)
        self.call("Emulation.setEmulatedMedia", features=[])

    def stop(self):
        self.process.terminate()
        self.process.wait(60)
        self.profile.cleanup()


class Server:
    def __init__(self, program):
        self.process = subprocess.Popen([program, "serve", "--port", "0", "--api-key", KEY, "--draft-length", "4@0", "--no-governor"], stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().split()[-1]
        deadline = time.monotonic() + HANG_S
        while not self.ready():
            assert time.monotonic() < deadline, "no verifier has joined"
            time.sleep(0.05)

    def ready(self):
        try:
            request = urllib.request.Request(self.url + "/ready", headers={"Authorization": "Bearer " + KEY})
            with urllib.request.urlopen(request) as reply:
                return json.load(reply)["drafters"] == 1
        except urllib.error.HTTPError:
            return False

    def chat(self, **fields):
        request = urllib.request.Request(self.url + "/v1/chat/completions", json.dumps(fields).encode(),
                                         {"Content-Type": "application/json", "Authorization": "Bearer " + KEY})
        with urllib.request.urlopen(request) as reply:
            return json.load(reply)

    def stop(self):
        self.process.terminate()
        equal(self.process.wait(60), 0, "the server's exit status")
        self.process.stdout.close()


def page_hash():
    return hashlib.sha256(PAGE.read_bytes()).hexdigest().encode()


def equal(seen, wanted, what):
    assert seen == wanted, f"{what} is {seen!r}, wanted {wanted!r}"


def text_of(browser, element):
    return browser.evaluate(f"document.getElementById('{element}').textContent")


def ask(browser, question, **settings):
    """Types the question, presses Enter, waits for the end of the answer."""
    for element, value in settings.items():
        browser.evaluate(f"document.getElementById('{element.replace('_', '-')}').value = '{value}'")
    send(browser, question)
    equal(browser.evaluate("document.getElementById('prompt').value"), "", "the message after its answer")


def send(browser, question):
    """Types the question, presses Enter, waits for the end of the answer, or for why there is none."""
    browser.type_into("prompt", question)
    browser.press("Enter")
    browser.wait_for("document.getElementById('log').getAttribute('aria-busy') === 'false' && running === null")


LAST = "[...document.querySelectorAll('.message')].at(-1)"


def kept_text(browser):
    """The last message without its rejected drafts."""
    return browser.evaluate(f"[...{LAST}.querySelectorAll('.accepted, .own')].map(e => e.textContent).join('')")


# The least contrast between a text and what is behind it, over everything that is shown.
CONTRAST = """(() => {
  const numbers = color => color.match(/[\\d.]+/g).map(Number);
  const luminance = color => numbers(color).slice(0, 3).map(c => c / 255).map(c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
  const behind = element => { const back = getComputedStyle(element).backgroundColor;
    return numbers(back)[3] === 0 && element.parentElement ? behind(element.parentElement) : back; };
  const texts = [...document.body.querySelectorAll('*')].filter(e => !e.closest('script') && !e.disabled && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()));
  return Math.min(...texts.map(e => {
    const [dark, light] = [luminance(getComputedStyle(e).color), luminance(behind(e))].sort((a, b) => a - b);
    return (light + .05) / (dark + .05);
  }));
})()"""


def a_key_opens_it(browser, server):
    try:
        urllib.request.urlopen(server.url + "/")
        raise AssertionError("the page came without a key")
    except urllib.error.HTTPError as refused:
        equal((refused.code, refused.headers["WWW-Authenticate"].split()[0]), (401, "Basic"), "without a key")
    browser.call("Page.navigate", url=server.url.replace("//", f"//me:{KEY}@") + "/")  # as if typed into its dialog
    browser.wait_for("document.querySelectorAll('.worker').length === 2")


def what_is_hidden_is_not_seen(browser, _server):
    """Whatever else says how it is displayed."""
    equal(browser.evaluate("document.querySelectorAll('[hidden] input[type=file]').length"), 1, "hidden inputs of files")
    browser.evaluate("document.querySelector('.composer').hidden = true")
    seen = "[...document.querySelectorAll('[hidden]')].filter(e => e.getClientRects().length > 0).map(e => e.outerHTML)"
    equal(browser.evaluate(seen), [], "hidden elements that are seen")
    browser.evaluate("document.querySelector('.composer').hidden = false")


def a_round_is_shown_as_it_was(browser, server):
    ask(browser, QUESTION, draft_length="0", temperature="0", max_tokens="30")
    equal(text_of(browser, "accepted_tokens"), "–", "accepted_tokens without drafts")
    plain = browser.evaluate(f"[...{LAST}.querySelectorAll('.own')].map(e => e.textContent).join('')")
    equal(browser.evaluate(LAST + ".querySelector('.note').textContent"), "(cut off after 30 tokens, the limit in Settings, or because the context is full)", "the end")
    equal(browser.evaluate(LAST + ".querySelectorAll('.accepted, .rejected').length"), 0, "marks without drafts")
    browser.evaluate("document.getElementById('clear').click()")

    ask(browser, QUESTION, draft_length="6", max_tokens="200")
    answer = server.chat(messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=200, speculative={"draft_length": 6})
    speculative = answer["speculative"]
    said = kept_text(browser)
    equal(said, answer["choices"][0]["message"]["content"], "the text on the page")
    assert said.startswith(plain), plain
    accepted, drafted = speculative["accepted_tokens"], speculative["drafted_tokens"]
    assert 0 < accepted < drafted, "this question must show both marks"
    assert text_of(browser, "accepted_tokens").startswith(f"{accepted} / {drafted} "), text_of(browser, "accepted_tokens")
    marks = {mark: browser.evaluate(f"{LAST}.querySelectorAll('.{mark}').length") for mark in ("accepted", "rejected", "own")}
    # The last round may have been cut off by the limit, with its accepted drafts beyond it.
    equal(marks["rejected"], drafted - accepted, "rejected marks")
    equal(marks["accepted"] + marks["own"], answer["usage"]["completion_tokens"], "kept marks")
    assert accepted - 6 <= marks["accepted"] <= accepted, (marks, accepted)
    equal(browser.evaluate(f"getComputedStyle({LAST}.querySelector('.rejected')).textDecorationLine"), "line-through", "a rejected draft")
    colors = browser.evaluate(f"['.accepted', '.rejected', '.own'].map(c => getComputedStyle({LAST}.querySelector(c)).color)")
    equal(len(set(colors)), 3, "colours")
    for metric in ("rate", "speculative_tok_per_sec", "draft_tokens_per_batch", "tokens_per_round", "target_verify_ms", "assistant_draft_ms"):
        assert float(text_of(browser, metric)) > 0, metric
    positions = browser.evaluate("[...document.querySelectorAll('#positions tr')].map(row => row.lastChild.textContent.match(/\\d+\\/\\d+/)[0])")
    equal(positions, [f"{a}/{d}" for a, d in zip(speculative["accepted_per_position"], speculative["drafted_per_position"])], "acceptance per position")
    for mark, count in (("column", speculative["rounds"]), ("kept", accepted), ("lost", drafted - accepted), ("t-verify", speculative["rounds"])):
        equal(browser.evaluate(f"document.querySelectorAll('#lengths .{mark}').length"), count, f".{mark} in the chart")
    labels = browser.evaluate("[...document.querySelectorAll('#axis text')].map(e => e.textContent)")
    assert {"drafts", "ms", "6", "0"} <= set(labels), labels
    width = browser.evaluate("document.querySelector('#positions .bar span').getBoundingClientRect().width")
    assert width > 10, f"the first bar is {width} wide"


def a_comparison_shows_both(browser, _server):
    said = kept_text(browser)
    browser.evaluate("window.fetches = []; window.realFetch = fetch; window.fetch = (url, options) => { if (options) fetches.push(options.body); return realFetch(url, options); }")
    equal(text_of(browser, "verdict"), "Compare asks the same question without drafts.", "the verdict before it")
    equal(text_of(browser, "times"), "–", "the headline before there is anything to compare")
    browser.evaluate("document.getElementById('compare').click()")
    browser.wait_for("running === null && document.querySelector('.compared') !== null")
    browser.evaluate("window.fetch = realFetch")
    request = json.loads(browser.evaluate("fetches[0]"))
    equal(request["speculative"], {"report_rounds": True, "draft_length": 0}, "the second request")
    equal(kept_text(browser), said, "the plain answer")
    assert "the same text" in browser.evaluate("document.querySelector('.compared summary').textContent")
    fast, plain = (float(text_of(browser, name + "_tok_per_sec")) for name in ("speculative", "backbone_only"))
    times = text_of(browser, "times")
    assert times.endswith("×") and abs(float(times[:-1]) - fast / plain) < 0.02, (times, fast, plain)
    verdict = text_of(browser, "verdict")
    assert verdict.startswith("Faster" if fast > 1.06 * plain else "Slower" if fast < 0.94 * plain else ("As fast", "Faster", "Slower")), verdict


def a_round_leads_to_its_tokens(browser):
    """And a token to its round: with the pointer and with the keyboard."""
    lit = "[...document.querySelectorAll('.lit:not(.rejected)')].map(e => e.textContent).join('')"
    browser.evaluate("document.querySelectorAll('#lengths .column')[3].dispatchEvent(new PointerEvent('pointermove', {bubbles: true}))")
    equal(browser.evaluate(lit), browser.evaluate("shown.rounds[3].tokens.join('')"), "tokens of round 4")
    told = text_of(browser, "round")
    assert told.startswith("Round 4: ") and "verify" in told and told.count(" ms") == 1, told
    browser.evaluate("document.getElementById('scroll').focus()")
    browser.press("ArrowLeft")
    equal(browser.evaluate("shown.rounds.indexOf(chosen)"), 2, "the chosen round after the left arrow")
    browser.press("Enter")
    equal(browser.evaluate(lit), browser.evaluate("shown.rounds[2].tokens.join('')"), "tokens of round 3")
    browser.evaluate("shown.rounds[1].elements[0].click()")
    equal(browser.evaluate("[...document.querySelectorAll('#lengths .column')].findIndex(e => e.classList.contains('chosen'))"), 1, "the column of a token of round 2")


def add_files(browser, *files):
    """As if they were chosen. files: of each its name, type and bytes"""
    files = [[name, kind, base64.b64encode(data).decode()] for name, kind, data in files]
    browser.evaluate(f"""(async () => {{
      const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0));
      await addMedia({json.dumps(files)}.map(([name, type, text]) => new File([bytes(text)], name, {{type}})));
    }})()""")


def pictures_are_shown_and_sent(browser):
    """One that is answered about, and one that is none: the answer is why."""
    browser.evaluate("document.getElementById('clear').click()")
    circle = RED_CIRCLE.read_bytes()
    add_files(browser, ("1.png", "image/png", circle), ("2.png", "image/png", circle), ("x.txt", "text/plain", b"x"))
    equal(browser.evaluate("document.querySelectorAll('#media img').length"), 2, "pictures to be sent")
    browser.evaluate("document.querySelector('#media button').click()")
    equal(browser.evaluate("document.querySelectorAll('#media img').length"), 1, "after one was left out")
    ask(browser, "What colour is the circle?", max_tokens="24")
    equal(browser.evaluate("document.querySelectorAll('#log img').length"), 1, "pictures in the conversation")
    answer = kept_text(browser)
    assert "red" in answer.lower(), answer
    browser.evaluate("document.getElementById('clear').click()")
    add_files(browser, ("1.png", "image/png", circle[:100]))
    send(browser, "What is this?")
    answer = browser.evaluate(LAST + ".textContent")
    assert "PNG: the file breaks off" in answer, answer
    equal(browser.evaluate("document.getElementById('prompt').value"), "What is this?", "a message that failed")
    equal(browser.evaluate("document.querySelectorAll('#media img').length"), 1, "its pictures, to be sent again")
    browser.evaluate("document.getElementById('prompt').value = ''; document.getElementById('clear').click()")


def videos_and_sounds_are_sent(browser):
    """A video is answered about, where files of videos are read; a sound is; one that breaks off is not."""
    browser.evaluate("document.getElementById('clear').click()")
    add_files(browser, ("1.mp4", "video/mp4", (GOLDENS / "videos/short.mp4").read_bytes()))
    equal(browser.evaluate("document.querySelector('#media').textContent.trim()"), "▶ video", "a video to be sent")
    send(browser, "What is this?")
    answer = browser.evaluate(LAST + ".textContent")
    assert "built without FFmpeg" in answer or browser.evaluate("messages.length") == 2, answer
    browser.evaluate("document.getElementById('prompt').value = ''; document.getElementById('clear').click()")
    dialled = (GOLDENS / "nano-sounds/dialled_472.wav").read_bytes()
    add_files(browser, ("1.wav", "audio/wav", dialled))
    equal(browser.evaluate("document.querySelector('#media').textContent.trim()"), "♪ sound", "a sound to be sent")
    send(browser, "What number is dialled?")
    answer = browser.evaluate(LAST + ".textContent")
    assert "472." in answer, answer
    browser.evaluate("document.getElementById('clear').click()")
    add_files(browser, ("1.wav", "audio/wav", dialled[:60]))
    send(browser, "What number is dialled?")
    answer = browser.evaluate(LAST + ".textContent")
    assert "1.wav" in answer or "content[0]" in answer, answer
    equal(browser.evaluate("document.querySelectorAll('#media button').length"), 1, "its sound, to be sent again")
    browser.evaluate("document.getElementById('prompt').value = ''; document.getElementById('clear').click()")


def workers_are_there(browser):
    equal(sorted(browser.evaluate("[...document.querySelectorAll('.worker strong')].map(e => e.textContent)")), ["drafter", "verifier"], "workers")
    browser.wait_for("[...document.querySelectorAll('.worker .link')].every(e => / ms$/.test(e.textContent))")


def a_lost_worker_stays_in_sight(browser):
    """With where its sequences went."""
    def worker(name, sessions, **more):
        return more | {"role": "verifier", "name": name, "sessions": sessions, "draining": False, "rtt_ms": 0.2, "kv_bytes": sessions << 30, "kv_bytes_max": 8 << 30}
    # What the page asks for meanwhile, or has asked for, shows nobody.
    browser.evaluate("window.realShow = showWorkers; window.showWorkers = () => {}; known.clear()")
    for workers in ([worker("a", 2), worker("b", 1), worker("c", 0)], [worker("b", 3), worker("c", 0, shards=2, shards_over="tcp")]):
        browser.evaluate(f"realShow({json.dumps({'model': 'm', 'version': '1', 'sessions': 3, 'waiting': 0, 'workers': workers})})")
    fates = browser.evaluate("[...document.querySelectorAll('.worker.gone')].map(e => e.querySelector('.name').textContent + ': ' + e.querySelector('.fate').textContent)")
    assert len(fates) == 1 and fates[0].startswith("a: gone at") and fates[0].endswith("its 2 sequences moved to b"), fates
    equal(browser.evaluate("[...document.querySelectorAll('.worker .track span')].map(e => e.style.width)"), ["37.5%", "0%"], "K/V bars")
    equal(browser.evaluate("[...document.querySelectorAll('.worker')].map(e => e.textContent.match(/. shards( over TCP)?/)?.[0]).filter(Boolean)"), ["2 shards over TCP"], "shards")
    equal(browser.evaluate("[...document.querySelectorAll('.state, .hub span')].filter(e => !kWords[e.dataset.word]).map(e => e.textContent)"), [], "words without an explanation")
    browser.evaluate("known.clear(); window.showWorkers = realShow")
    browser.wait_for("[...document.querySelectorAll('.worker strong')].length === 2")


def hidden_drafts_leave_the_text(browser):
    browser.evaluate("document.getElementById('show-rejected').click()")
    equal(browser.evaluate("getComputedStyle(document.querySelector('#log .rejected')).display"), "none", "a hidden draft")
    browser.evaluate("document.getElementById('show-rejected').click()")


def everybody_can_read_it(browser):
    equal(browser.evaluate("[...document.querySelectorAll('input, select, textarea')].filter(e => e.labels.length === 0).length"), 0, "fields without a label")
    backgrounds = set()
    for scheme in ("dark", "light"):
        browser.scheme(scheme)
        backgrounds.add(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
        contrast = browser.evaluate(CONTRAST)
        assert contrast >= 4.5, f"contrast {contrast:.2f} in {scheme}, wanted 4.5 (WCAG AA)"
    equal(len(backgrounds), 2, "backgrounds")


def axe_core(folder):
    """Its source, from npm; None without npm or its registry."""
    version, wanted = AXE
    archive = folder / f"axe-core-{version}.tgz"
    if not archive.exists():
        if shutil.which("npm") is None or subprocess.run(["npm", "pack", "--silent", f"axe-core@{version}"], cwd=folder, timeout=HANG_S, check=False,
                                                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
            print("SKIPPED: axe-core did NOT look at the page: it cannot be had from npm")
            return None
    equal(hashlib.sha256(archive.read_bytes()).hexdigest(), wanted, f"the SHA-256 of {archive}")
    with tarfile.open(archive) as files:
        return files.extractfile("package/axe.min.js").read().decode()


def axe_finds_nothing(browser, axe):
    """Wide and narrow, light and dark, each view and each dialog."""
    browser.evaluate(axe + "; 1")
    found = []
    for width, views in ((1280, ("chat",)), (360, ("chat", "board"))):
        browser.size(width, 900, width < 500)
        for scheme in ("dark", "light"):
            browser.scheme(scheme)
            for view in views:
                browser.evaluate(f"showBoard({json.dumps(view == 'board')})")
                for dialog in (None, "settings", "words") if view == "chat" else (None,):
                    if dialog:
                        browser.evaluate(f"document.getElementById('{dialog}').showModal()")
                    seen = browser.evaluate("axe.run().then(all => all.violations.map(v => v.id + ': ' + v.nodes.map(n => n.html).join(' ')))")
                    found += [(width, scheme, view, dialog, one) for one in seen]
                    if dialog:
                        browser.evaluate(f"document.getElementById('{dialog}').close()")
    browser.evaluate("showBoard(false)")
    browser.size(1280, 900)
    equal(found, [], "what axe finds")


def it_works_by_keyboard(browser):
    for dialog in ("settings", "words"):
        browser.evaluate(f"document.getElementById('open-{dialog}').focus()")
        browser.press("Enter")
        assert browser.evaluate(f"document.getElementById('{dialog}').open"), dialog
        browser.press("Escape")
        assert not browser.evaluate(f"document.getElementById('{dialog}').open"), dialog
        equal(browser.evaluate("document.activeElement.id"), "open-" + dialog, "the focus after a dialog")


def the_composer_is_in_view(browser):
    box = browser.evaluate("(b => [b.top, b.bottom, b.left, b.right])(document.getElementById('send').getBoundingClientRect())")
    width, height = browser.evaluate("[innerWidth, innerHeight]")
    assert 0 <= box[0] < box[1] <= height and 0 <= box[2] < box[3] <= width, f"Send is at {box} of {width} x {height}"


def an_answer_can_be_stopped(browser):
    browser.evaluate("document.getElementById('max-tokens').value = '4000'")
    browser.type_into("prompt", "Count from one to one thousand.")
    browser.press("Enter")
    browser.wait_for(f"{LAST}.querySelectorAll('.own').length > 2 || running === null")
    browser.evaluate("document.getElementById('stop').click()")
    browser.wait_for("running === null && document.getElementById('sessions').textContent.startsWith('0 ')")
    browser.evaluate("document.getElementById('clear').click()")


def the_conversation_follows_the_answer(browser):
    below = "(log => log.scrollHeight - log.scrollTop - log.clientHeight)(document.getElementById('log'))"
    for _ in range(6):
        ask(browser, QUESTION, draft_length="4", max_tokens="60")
        the_composer_is_in_view(browser)
        assert browser.evaluate(below) < 40, "the end of an answer is out of sight"
    assert browser.evaluate("document.getElementById('log').scrollHeight > document.getElementById('log').clientHeight"), "nothing had to follow"
    browser.evaluate("document.getElementById('log').scrollTop = 0")  # somebody reads what was said before


def a_reload_keeps_the_conversation(browser):
    said = browser.evaluate("messages.map(m => m.content).join()")
    browser.type_into("prompt", "half a question")
    browser.call("Page.reload")
    browser.wait_for("document.readyState === 'complete' && document.querySelectorAll('.worker').length === 2")
    equal(browser.evaluate("messages.map(m => m.content).join()"), said, "the conversation after a reload")
    equal(browser.evaluate("document.querySelectorAll('.message').length"), 12, "messages after a reload")
    equal(browser.evaluate("document.getElementById('prompt').value"), "half a question", "what was typed")
    browser.evaluate("document.getElementById('prompt').value = ''; document.getElementById('clear').click()")


def a_message_that_failed_can_be_sent_again(browser):
    browser.evaluate("document.getElementById('max-tokens').value = '5'; document.getElementById('temperature').value = '3'")
    browser.evaluate("document.getElementById('temperature').removeAttribute('max')")
    browser.type_into("prompt", "Hello")
    browser.press("Enter")
    browser.wait_for("document.querySelector('.message .error') !== null && running === null")
    equal(browser.evaluate("document.getElementById('prompt').value"), "Hello", "the message that failed")
    equal(browser.evaluate("messages.length"), 0, "messages after one that failed")
    browser.complaints = [text for text in browser.complaints if "400" not in text]  # Chromium's own word on the reply
    browser.evaluate("document.getElementById('prompt').value = ''; document.getElementById('temperature').value = '0'")
    browser.evaluate("document.getElementById('clear').click()")


def a_newcomer_is_helped(browser):
    assert browser.evaluate("document.getElementById('offers').offsetHeight") > 0, "no first question is offered"
    browser.evaluate("document.getElementById('system').value = 'You count.'; document.getElementById('thinking').checked = true")
    browser.evaluate("""window.asked = []; const real = window.fetch;
        window.fetch = (url, options) => { if (options) asked.push(options.body); return real(url, options); }""")
    browser.evaluate("document.querySelector('#offers button').click()")
    browser.wait_for("running === null && document.querySelectorAll('.message').length === 2")
    request = json.loads(browser.evaluate("asked[0]"))
    equal(request["messages"][0], {"role": "system", "content": "You count."}, "the first message")
    equal(request["chat_template_kwargs"], {"enable_thinking": True}, "thinking")
    equal(browser.evaluate("document.getElementById('offers').offsetHeight"), 0, "offers in a conversation")
    unexplained = browser.evaluate("[...document.querySelectorAll('[data-word], #numbers dt')].filter(e => !kWords[e.dataset.word] || e.title !== kWords[e.dataset.word]).map(e => e.textContent)")
    equal(unexplained, [], "words without an explanation")
    browser.evaluate("document.getElementById('system').value = ''; document.getElementById('thinking').checked = false; document.getElementById('clear').click()")


def it_works_on_a_phone(browser):
    browser.size(360, 700, phone=True)
    browser.call("Emulation.setTouchEmulationEnabled", enabled=True)
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "pointer", "value": "coarse"}])
    browser.call("Page.reload")
    browser.wait_for("document.readyState === 'complete' && document.querySelectorAll('.worker').length === 2")
    if browser.evaluate("matchMedia('(pointer: coarse)').matches"):
        browser.type_into("prompt", "one")
        browser.press("Enter")
        browser.type_into("prompt", "two")
        equal(browser.evaluate("document.getElementById('prompt').value"), "one\ntwo", "a new line")
        browser.evaluate("document.getElementById('prompt').value = ''")
    for view in ("Board", "Chat"):
        the_composer_is_in_view(browser)
        assert browser.evaluate("Math.max(document.documentElement.scrollWidth, document.getElementById('board').scrollWidth)") <= 360, "the page is wider than a phone"
        equal(text_of(browser, "view"), view, "the other view")
        browser.evaluate("document.getElementById('view').click()")
    # A word that is broken takes more lines than it has words and hyphens.
    broken = browser.evaluate("""[...document.querySelectorAll('.worker strong, .worker .link, thead th')].filter(cell => cell.childNodes.length && (() => {
        const range = document.createRange(); range.selectNodeContents(cell);
        return new Set([...range.getClientRects()].map(r => r.top)).size > cell.textContent.split(/[\s-]/).length; })()).map(e => e.textContent)""")
    equal(broken, [], "broken words in the table")
    browser.call("Emulation.setTouchEmulationEnabled", enabled=False)
    browser.size(1280, 900)
    browser.call("Emulation.setEmulatedMedia", features=[])
    browser.call("Page.reload")
    browser.wait_for("document.readyState === 'complete' && document.querySelectorAll('.worker').length === 2")


def text_is_never_markup(browser):
    hostile = "<img src=x onerror=hacked=1><script>hacked=1</script>"
    ask(browser, hostile, max_tokens="3")
    assert hostile in browser.evaluate("document.getElementById('log').textContent")
    rounds = json.dumps({"source": "ngram", "drafts": [hostile, hostile], "tokens": [hostile, hostile], "accepted": 1})
    browser.evaluate(f"showRound(addMessage('x'), {rounds})")
    status = json.dumps({"model": hostile, "version": hostile, "sessions": 0, "waiting": 0, "workers": [
        {"role": hostile, "name": hostile, "sessions": 0, "draining": True, "rtt_ms": None}]})
    browser.evaluate(f"showWorkers({status})")
    equal(browser.evaluate("document.querySelectorAll('img, body script:not([nonce])').length + (typeof hacked === 'undefined' ? 0 : 1)"), 0, "markup")
    equal(browser.complaints, [], "console")
    # And if it were: the policy does not let it run.
    browser.evaluate("document.body.appendChild(Object.assign(document.createElement('script'), {textContent: 'window.hacked = 1'}))")
    equal(browser.evaluate("typeof hacked"), "undefined", "a script that the page did not bring")
    assert browser.complaints, "the policy says nothing"


def the_terminals_picture_is_of_this_program(program):
    """It tells the same story. What is accepted, and how fast, is the machine's."""
    def story(svg):
        pieces = re.findall(r'class="piece(| accepted)"[^>]*>([^<]*)<', svg.read_text())
        return "".join(html.unescape("".join(text for _, text in pieces)).split())  # its lines break elsewhere

    picture = SOURCE / "docs/rounds.svg"
    with tempfile.TemporaryDirectory() as folder:
        drawn = pathlib.Path(os.environ.get("OUTRIDER_PICTURES") or folder) / "terminal.svg"
        subprocess.run([sys.executable, SOURCE / "lab/terminal_picture.py", program, drawn], check=True)
        equal(story(picture), story(drawn), f"the story in {picture}, which lab/terminal_picture.py draws,")


def the_picture_is_of_this_page():
    assert page_hash() in PICTURE.read_bytes(), f"{PICTURE} is of another page: {sys.argv[0]} {sys.argv[1]} {PICTURE}"
    size = PAGE.stat().st_size
    assert size < PAGE_BYTES_MAX, f"the page has {size} bytes, wanted fewer than {PAGE_BYTES_MAX}"


def main():
    if len(sys.argv) < 3:
        the_picture_is_of_this_page()
    the_terminals_picture_is_of_this_program(sys.argv[1])
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        print("SKIPPED: the live page was NOT tested in a browser: no chromium on this machine (apt-get install chromium)")
        return 77
    with contextlib.ExitStack() as started:
        server = Server(sys.argv[1])
        started.callback(server.stop)
        browser = Chromium(program)
        started.callback(browser.stop)
        a_key_opens_it(browser, server)
        what_is_hidden_is_not_seen(browser, server)
        a_round_is_shown_as_it_was(browser, server)
        workers_are_there(browser)
        a_comparison_shows_both(browser, server)
        browser.evaluate("tell(shown.rounds[4])")
        if len(sys.argv) > 2:
            board_ends = "Math.ceil(document.getElementById('workers').closest('section').getBoundingClientRect().bottom)"
            browser.size(1280, browser.evaluate(board_ends) + 8)
            browser.screenshot(sys.argv[2], page_hash())
            browser.size(1280, 900)
            the_picture_is_of_this_page()
        browser.pictures("page")
        a_round_leads_to_its_tokens(browser)
        a_lost_worker_stays_in_sight(browser)
        hidden_drafts_leave_the_text(browser)
        everybody_can_read_it(browser)
        it_works_by_keyboard(browser)
        if axe := axe_core(pathlib.Path(sys.argv[1]).resolve().parent):
            axe_finds_nothing(browser, axe)
        an_answer_can_be_stopped(browser)
        the_conversation_follows_the_answer(browser)
        a_reload_keeps_the_conversation(browser)
        a_message_that_failed_can_be_sent_again(browser)
        a_newcomer_is_helped(browser)
        it_works_on_a_phone(browser)
        text_is_never_markup(browser)
        pictures_are_shown_and_sent(browser)
        videos_and_sounds_are_sent(browser)
        elsewhere = [url for url in (seen.replace(f"me:{KEY}@", "") for seen in browser.urls) if not url.startswith((server.url, "data:", "about:"))]
        equal(elsewhere, [], "requests to other hosts")
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
