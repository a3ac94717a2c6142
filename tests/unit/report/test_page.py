"""The page in Chromium: no complaint, every figure drawn, the events' numbers, no request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rsprune.report import write_report
from tests.browser import Page, find_chromium, opened
from tests.unit.report.events import events, latency, write

pytestmark = pytest.mark.skipif(
    find_chromium() is None, reason="no chromium here; on Debian: apt-get install chromium"
)

FIGURES = {
    "widths", "sparsity", "latency", "penalties", "sparsities", "sizes", "tradeoff", "accuracy",
    "loss",
}  # fmt: skip
DRAWN = (
    "document.querySelectorAll('#{} svg.main-svg :is(.bars path, path.js-line, path.point)').length"
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write(tmp_path_factory.mktemp("run"))
    latency().write(directory / "latency.json")
    html, _ = write_report(directory)
    return html


@pytest.fixture(scope="module")
def page(report: Path) -> Iterator[Page]:
    with opened(report) as found:
        yield found


def values(page: Page, within: str) -> list[Any]:
    """The machine-readable values of a part of the page, in order."""
    script = f"[...document.querySelectorAll('{within} [data-value]')].map(x => x.dataset.value)"
    return [json.loads(value) for value in page.evaluate(script)]


def test_silent_and_alone(page: Page, report: Path) -> None:
    """No error or warning in the console, and nothing but the file itself is asked for."""
    assert page.complaints == []
    assert {url for url in page.requests if not url.startswith("data:")} == {report.as_uri()}


def test_every_figure_is_drawn(page: Page) -> None:
    """Each figure has a picture with traces in it, and words for those who do not see it."""
    names = set(page.evaluate("[...document.querySelectorAll('.plot')].map(x => x.id)"))
    assert names == FIGURES
    for name in names:
        assert page.evaluate(DRAWN.format(name)) > 0, name
        assert len(page.evaluate(f"document.getElementById('{name}').ariaLabel")) > 20
    assert page.evaluate("document.querySelectorAll('#sparsity .shapelayer path').length") == 8 + 1


def test_numbers_are_the_events(page: Page) -> None:
    """The headline, the rounds and the recipe hold the events' values, to the last digit."""
    told = events()
    before, after = told[-1]["before"], told[-1]["after"]
    fastest = min(latency().first_rows, key=lambda row: row.compressed.median)
    before["latency"], after["latency"] = fastest.original.median, fastest.compressed.median
    keys = ("macs", "params", "weights", "test_accuracy", "validation_accuracy", "latency")
    assert values(page, "#headline") == [side[key] for key in keys for side in (before, after)]
    cards = ("macs", "params", "test_accuracy", "latency")
    assert values(page, ".cards") == [side[key] for key in cards for side in (after, before)]
    rounds = [e for e in told if e["event"] == "round"]
    assert values(page, "#rounds") == [
        value
        for e in rounds
        for value in (
            e["lam"], e["sparsity"], e["accuracy"], e["before"]["macs"], e["after"]["macs"],
            e["after"]["params"],
        )
    ]  # fmt: skip
    environment = [*told[0]["environment"].values(), told[0]["weights_sha256"]]
    assert values(page, "#environment") == environment
    shown = page.evaluate("document.querySelector('.cards .after').textContent")
    assert shown == f"{after['macs']:,}"


def test_accessible(page: Page) -> None:
    """A title, a language, one first heading, no level left out, captions and column heads."""
    assert page.evaluate("document.title") == "small_cnn on digits: rsprune report"
    assert page.evaluate("document.documentElement.lang") == "en"
    levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3')].map(h => +h.tagName[1])")
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))
    assert page.evaluate("[...document.querySelectorAll('table')].every(t => t.caption && t.tHead)")
    assert page.evaluate("new Set([...document.querySelectorAll('[id]')].map(x => x.id)).size") == (
        page.evaluate("document.querySelectorAll('[id]').length")
    )


@pytest.mark.parametrize(("width", "dark"), [(360, False), (1280, True)], ids=["phone", "dark"])
def test_phone_and_dark(report: Path, width: int, dark: bool) -> None:
    """Nothing is wider than a phone, and text is legible on light and on dark."""
    with opened(report, width=width, dark=dark) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for place in ("body", "#widths .xtick text", "#sparsity .annotation-text"):
            assert _contrast(page, place) > 4.5, place
        assert page.complaints == []
        assert page.picture(600).startswith(b"\x89PNG")


def _contrast(page: Page, place: str) -> float:
    """WCAG's contrast between the colour of a text and the page's panels."""
    ink = page.evaluate(
        f"(s => s.fill && '{place}' != 'body' ? s.fill : s.color)"
        f"(getComputedStyle(document.querySelector('{place}')))"
    )
    card = page.evaluate("getComputedStyle(document.querySelector('.panel')).backgroundColor")
    low, high = sorted(map(_luminance, (ink, card)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    channels = [int(c) / 255 for c in colour.partition("(")[2].rstrip(")").split(",")[:3]]
    red, green, blue = (
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_unfinished_and_diverged(tmp_path: Path) -> None:
    """A page with gaps is as silent as a whole one."""
    told = events()[:25]
    told[3]["loss"] = float("nan")
    html, _ = write_report(write(tmp_path, told))
    with opened(html) as page:
        assert page.complaints == []
        assert page.evaluate("!!document.getElementById('unfinished')")
