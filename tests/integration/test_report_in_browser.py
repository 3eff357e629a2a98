"""The report in a real browser: at a desk, on a phone, in the dark, and printed."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from example_versions import REPORT, Page, example_versions
from matplotlib.figure import Figure

from pipeline.reporting.page import render

pytestmark = [pytest.mark.minutes, pytest.mark.end_to_end, pytest.mark.timeout(900)]

#: Widths of windows [CSS pixels].
DESK: Final = 1200
PHONE: Final = 375
DARK: Final = "--blink-settings=preferredColorScheme=0"
#: A space at which no line ends.
TIGHT = "\N{NO-BREAK SPACE}"
#: Longer names than a phone is wide.
LONG = "_a_very_long_name_that_somebody_gave_without_thinking_of_phones"

#: Least contrasts of words, and of lines of a figure, with what is behind them (WCAG 2.2, AA).
WORDS, LINES = 4.5, 3.0

#: Says in the DOM what only a script can know.
MEASURE = """
<script>
addEventListener("load", () => {
  const found = document.createElement("pre"), root = document.documentElement;
  const sizes = [...document.images].map(each => each.naturalWidth);
  const numbers = colour => (colour.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const linear = value => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const light = ([red, green, blue]) =>
    0.2126 * linear(red / 255) + 0.7152 * linear(green / 255) + 0.0722 * linear(blue / 255);
  function behind(each) {
    const colour = numbers(getComputedStyle(each).backgroundColor);
    return colour[3] === 0 ? behind(each.parentElement) : colour;
  }
  function contrast(each, colour) {
    const both = [light(numbers(colour)), light(behind(each))].sort((one, other) => other - one);
    return (both[0] + 0.05) / (both[1] + 0.05);
  }
  const colour = each => getComputedStyle(each)[each instanceof SVGElement ? "fill" : "color"];
  const has_words = each => [...each.childNodes].some(part => part.nodeType === Node.TEXT_NODE && part.data.trim());
  const is_shown = each => each.getClientRects().length > 0;
  const words = [...document.querySelectorAll("body *")].filter(each => has_words(each) && is_shown(each))
    .map(each => [contrast(each, colour(each)), each.textContent]);
  const faintest = words.reduce((one, other) => one[0] < other[0] ? one : other);
  const sample = document.getElementById("curves").appendChild(document.createElement("i"));
  const lines = [0, 1, 2, 3, 4, 5].map(number => {
    sample.style.color = `var(--model${number})`;
    return contrast(sample, getComputedStyle(sample).color);
  });
  const measured = {window: innerWidth, page: root.scrollWidth, visible: root.clientWidth, images: sizes};
  const size = each => parseFloat(getComputedStyle(document.querySelector(each)).fontSize);
  Object.assign(measured, {words: words.length, faintest, lines, body: size("body"), caption: size("figcaption")});
  found.id = "measured";
  found.textContent = JSON.stringify(measured);
  document.body.append(found);
  parent.postMessage(found.textContent, "*");
});
</script>
"""
#: A window cannot be narrower than 500 pixels, a frame can; to the page inside it is the window.
FRAME = """<!doctype html><style>body {{ margin: 0 }} iframe {{ border: 0 }}</style>
<script>
addEventListener("message", event => {{
  const found = document.createElement("pre");
  found.id = "measured";
  found.textContent = event.data;
  document.body.append(found);
}});
</script>
<iframe src="{page}" width="{width}" height="1500"></iframe>
"""


class LoadedPage(NamedTuple):
    """A page as the browser has it, and the lines of its console."""

    dom: str
    console: list[str]

    @property
    def measured(self) -> dict[str, Any]:
        """The measurements that the script of the page left."""
        match = re.search(r'<pre id="measured">(.*?)</pre>', self.dom)
        assert match, self.dom[-1000:]
        measurements: dict[str, Any] = json.loads(match[1])
        return measurements


class Browser:
    """A headless Chromium with a profile of its own."""

    def __init__(self, profile: Path) -> None:
        names = ("chromium", "chromium-browser", "google-chrome")
        programs = [shutil.which(name) for name in names]
        installed = [program for program in programs if program is not None]
        if not installed:
            pytest.fail(
                f"no browser: none of {', '.join(names)} is on the PATH. `make browser` installs "
                "one."
            )
        self.command = [
            installed[0],
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--virtual-time-budget=10000",
            f"--window-size={DESK},1500",
            f"--user-data-dir={profile}",
            "--enable-logging=stderr",
            "--v=0",
        ]

    def open(self, page: Path, *flags: str) -> LoadedPage:
        """Load a page; the flags say what to make of it."""
        completed = subprocess.run(
            [*self.command, *flags, page.as_uri()],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert completed.returncode == 0, completed.stderr
        console = [line for line in completed.stderr.splitlines() if ":CONSOLE" in line]
        return LoadedPage(completed.stdout, console)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    return Browser(tmp_path_factory.mktemp("browser"))


def draw_picture() -> bytes:
    """A PNG of the usual width of figures."""
    output = io.BytesIO()
    figure = Figure(figsize=(12, 5.6))
    figure.subplots().plot([0, 1], [0, 1])
    figure.savefig(output, format="png", dpi=110)
    return output.getvalue()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with all its sections; `measured.html` beside it has a script that measures."""
    folder = tmp_path_factory.mktemp("report")
    versions = example_versions(folder, suffix=LONG, picture=draw_picture())
    html = render(versions, REPORT, folder / "card")
    (folder / "report.html").write_text(html, encoding="utf-8")
    (folder / "measured.html").write_text(html + MEASURE, encoding="utf-8")
    return folder / "report.html"


@pytest.fixture(scope="module")
def measured_report(report: Path) -> Path:
    """The report with the script that measures."""
    return report.with_name("measured.html")


def frame_page(page: Path, width: int) -> Path:
    """A page that shows another one in a window of a width."""
    path = page.with_name(f"frame-{page.name}")
    path.write_text(FRAME.format(page=page.name, width=width), encoding="utf-8")
    return path


def words_of(dom: str) -> str:
    """The words of a page outside code, with plain spaces only where a line may end."""
    without_code = re.sub(r"(?s)<(pre|style|script)\b.*?</\1>", "", dom)
    return Page(without_code).text


def test_a_desk_sees_the_page_with_all_figures_and_no_more(
    browser: Browser, measured_report: Path
) -> None:
    page = browser.open(measured_report, "--dump-dom")

    assert page.console == []
    assert page.measured["window"] == DESK
    assert page.measured["page"] == page.measured["visible"]
    assert page.measured["images"] == [1320] * 17
    # The script draws a curve of each model, and says what is left at 90 %.
    assert page.dom.count("<polyline") == 2
    text = words_of(page.dom)
    plain_text = text.replace(TIGHT, " ")
    assert f"hlf{LONG}: 10.0 % (8.00 to 13.0 %)" in plain_text
    assert f"boosted-trees{LONG}: < 2.00 %" in plain_text
    # No line ends between a number and its unit, but where text is to be copied.
    assert re.findall(r"\d (?:%|GeV\b|s\b|µs\b|ns\b|kB\b)|[<>] \d", text) == []


def test_a_phone_needs_no_scrolling_sideways_but_in_tables_and_panels(
    browser: Browser, measured_report: Path
) -> None:
    page = browser.open(frame_page(measured_report, PHONE), "--dump-dom")

    assert page.console == []
    assert page.measured["window"] == PHONE
    assert page.measured["page"] == page.measured["visible"] == PHONE


@pytest.mark.parametrize("flags", [(), (DARK,)], ids=["light", "dark"])
def test_words_and_lines_stand_out_from_their_background(
    browser: Browser, measured_report: Path, flags: tuple[str, ...]
) -> None:
    measured = browser.open(measured_report, "--dump-dom", *flags).measured

    assert measured["words"] > 200
    assert measured["faintest"][0] >= WORDS, measured["faintest"]
    # Six colours for models.
    assert len(set(measured["lines"])) == 6
    assert min(measured["lines"]) >= LINES


def test_the_page_can_be_printed(browser: Browser, report: Path, measured_report: Path) -> None:
    pdf = report.with_name("report.pdf")
    on_paper = report.with_name("paper.html")
    html = measured_report.read_text(encoding="utf-8")
    on_paper.write_text(html.replace("@media print", "@media all"), encoding="utf-8")

    browser.open(report, f"--print-to-pdf={pdf}", DARK)
    measured = browser.open(on_paper, "--dump-dom").measured

    pdf_bytes = pdf.read_bytes()
    assert pdf_bytes.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", pdf_bytes)) > 1
    # Captions are smaller than the text on paper too.
    assert measured["caption"] < measured["body"] == 11
