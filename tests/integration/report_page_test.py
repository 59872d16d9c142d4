#!/usr/bin/env python3
"""An experiment's report in headless Chromium: light and dark, wide and narrow, on paper, and without any other host.

usage: report_page_test.py OUTRIDER RESULTS...      (folders with lock.json and cells.jsonl)

Exit 77: there is no Chromium, nothing was tested.
"""
import base64
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from live_page_test import CONTRAST, Chromium, equal

# Words of figures that lie outside their figure, which would be cut off.
CUT_OFF = """[...document.querySelectorAll('svg')].flatMap(svg => { const frame = svg.getBoundingClientRect();
  return [...svg.querySelectorAll('text')].filter(text => { const box = text.getBoundingClientRect();
    return box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1; })
    .map(text => text.textContent); })"""


# Labels of figures that another label or a heavy line covers.
COVERED = """[...document.querySelectorAll('svg')].flatMap(svg => {
  const texts = [...svg.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()]);
  const over = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2;
  const clash = texts.flatMap(([one, a], i) => texts.slice(i + 1).filter(([, b]) => over(a, b)).map(([other]) => one + ' / ' + other));
  const marks = [...svg.querySelectorAll('.even')].flatMap(path => {
    const points = Array.from({length: 200}, (_, i) => path.getPointAtLength(path.getTotalLength() * i / 199).matrixTransform(svg.getScreenCTM()));
    return texts.filter(([, box]) => points.some(p => p.x > box.left && p.x < box.right && p.y > box.top + 2 && p.y < box.bottom - 2)).map(([text]) => 'line / ' + text); });
  return [...clash, ...marks]; })"""


def resize(browser, width):
    browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500)


def everybody_can_read_it(browser):
    backgrounds = set()
    for scheme in ("light", "dark"):
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        backgrounds.add(browser.evaluate("getComputedStyle(document.body).backgroundColor"))
        contrast = browser.evaluate(CONTRAST)
        assert contrast >= 4.5, f"the least contrast is {contrast:.2f} in {scheme}, wanted 4.5 (WCAG AA)"
    equal(len(backgrounds), 2, "backgrounds of light and dark")
    browser.call("Emulation.setEmulatedMedia", features=[])


def it_fits(browser):
    for width in (1280, 360):
        resize(browser, width)
        seen = browser.evaluate("document.documentElement.scrollWidth")
        assert seen <= width, f"the page is {seen} wide on a screen of {width}"
        equal(browser.evaluate(CUT_OFF), [], f"cut off in figures at {width}")
        equal(browser.evaluate(COVERED), [], f"covered in figures at {width}")
    resize(browser, 1280)


def it_can_be_printed(browser):
    pdf = base64.b64decode(browser.call("Page.printToPDF", printBackground=True)["data"])
    pages = len(re.findall(rb"/Type\s*/Page\b", pdf))
    figures = browser.evaluate("document.querySelectorAll('figure').length")
    assert 1 <= pages <= 2 + 2 * figures, f"{pages} pages for {figures} figures"
    browser.call("Emulation.setEmulatedMedia", media="print")
    equal(browser.evaluate("getComputedStyle(document.querySelector('.scroll')).overflowX"), "visible", "the table on paper: its overflow")
    browser.call("Emulation.setEmulatedMedia", media="")


def main():
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        print("SKIPPED: the report was NOT tested: no chromium on this machine (apt-get install chromium)")
        return 77
    browser = Chromium(chromium)
    try:
        for results in map(pathlib.Path, sys.argv[2:]):
            with tempfile.TemporaryDirectory() as folder:
                shutil.copy(results / "cells.jsonl", folder)
                lock = json.loads((results / "lock.json").read_text())
                lock["program"]["backbone"] = "/srv/models_in_a_folder_with_a_name_that_nobody_breaks/backbone"
                (pathlib.Path(folder) / "lock.json").write_text(json.dumps(lock))
                subprocess.run([sys.argv[1], "experiment", "report", folder], check=True, stdout=subprocess.DEVNULL)
                page = f"file://{folder}/report.html"
                browser.call("Page.navigate", url=page)
                browser.wait_for("document.readyState === 'complete' && document.querySelectorAll('figure').length > 0")
                browser.pictures("report-" + results.name)
                everybody_can_read_it(browser)
                it_fits(browser)
                it_can_be_printed(browser)
        equal(browser.complaints, [], "console")
        equal([url for url in browser.urls if not url.startswith(("file:", "about:"))], [], "requests to hosts")
    finally:
        browser.stop()
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
