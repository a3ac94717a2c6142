"""The documentation is true: its code runs, its links lead somewhere."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
CODE = re.compile(r"<!-- setup\n(.*?)-->|```python\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\[[^\]]+\]\(([^)#\s]*)(#[^)\s]*)?\)")

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@pages
def test_code_runs(page: Path) -> None:
    """All Python of a page, from top to bottom, after its hidden set-up."""
    source = "\n".join(setup or code for setup, code in CODE.findall(page.read_text()))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="With lam=")  # the pages' networks train briefly
        exec(compile(source, page.name, "exec"), {})


@pages
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text()):
        if target.startswith("http"):
            continue
        file = (page.parent / target) if target else page
        assert file.exists(), target
        if anchor:
            assert anchor[1:] in {slug(line) for line in file.read_text().splitlines()}, anchor


def slug(line: str) -> str:
    """The anchor of a heading, as Git hosts make it."""
    if not line.startswith("#"):
        return ""
    return re.sub(r"[^\w\- ]", "", line.lstrip("# ").lower()).replace(" ", "-")


def test_nothing_is_left_to_fill_in() -> None:
    for page in PAGES:
        markers = re.findall(r"<!-- (?!setup)(\w+)", page.read_text())
        assert not markers, (page.name, markers)
