"""write_report: both files, their numbers, and runs that are unfinished or odd."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from rsprune.errors import FileFormatError, RsPruneError, RunError, StorageError
from rsprune.report import numbers, write_report
from tests.unit.report.events import events, latency, write

LIMIT = 6_000_000  # bytes


def plots_of(html: Path) -> dict[str, Any]:
    """The data of the page's figures."""
    found = re.search(
        r'<script type="application/json" id="figures">(.*?)</script>', html.read_text()
    )
    assert found
    plots: dict[str, Any] = json.loads(found[1])
    return plots


def test_one_page_that_loads_nothing(tmp_path: Path) -> None:
    """The page is one file under 6 MB; no attribute of it names another resource."""
    html, _ = write_report(write(tmp_path))
    text = html.read_text()
    assert len(text.encode()) < LIMIT
    outside = re.sub(r"<script.*?</script>", "", text, flags=re.S)
    assert "http:" not in outside
    assert "https:" not in outside
    assert not re.search(r"<script[^>]+src=|<img|@import|url\(", outside)
    assert re.findall(r'<link[^>]+href="([^"]*)"', outside) == ["data:,"]
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "events.jsonl", "report.html", "report.md",
    ]  # fmt: skip


def test_figures_hold_the_events_numbers(tmp_path: Path) -> None:
    """Every curve and bar is made of the events' own numbers, unrounded."""
    told = events()
    plots = plots_of(write_report(write(tmp_path, told))[0])
    epochs = [e for e in told if e["event"] == "epoch"]
    assert [y for y in plots["loss"]["data"][0]["y"] if y is not None] == [
        e["loss"] for e in epochs
    ]
    sparsity = {trace["name"]: trace["y"] for trace in plots["sparsity"]["data"]}
    assert [y for y in sparsity["conv2"] if y is not None] == [
        e["layers"]["conv2.weight"] for e in epochs if e["stage"] == "explore"
    ]
    before, after = plots["widths"]["data"]
    layers = told[-1]["layers"]
    assert before["y"] == [layer["before"]["shape"][0] for layer in layers]
    assert after["y"] == [layer["after"]["shape"][0] for layer in layers]
    assert plots["tradeoff"]["data"][0]["text"] == [
        "baseline", "round 1, sparse", "round 2, sparse", "result",
    ]  # fmt: skip
    assert plots["tradeoff"]["data"][0]["x"][-1] == told[-1]["after"]["macs"]


def test_bands_are_the_phases(tmp_path: Path) -> None:
    """Each run of epochs in one phase is one band, in place."""
    plots = plots_of(write_report(write(tmp_path))[0])
    shapes = plots["sparsity"]["layout"]["shapes"]
    bands = [(s["name"], s["x0"], s["x1"]) for s in shapes if s["type"] == "rect"]
    edges = [0.5 + 3 * i for i in range(9)]  # of the sparse epochs, counted over both rounds
    names = ["prox", "orthant"] * 4
    assert bands == list(zip(names, edges, edges[1:], strict=False))
    assert [s["x0"] for s in shapes if s["type"] == "line"] == [12.5]
    lines = [s for s in plots["accuracy"]["layout"]["shapes"] if s["type"] == "line"]
    assert [s["x0"] for s in lines] == [8.5, 20.5, 32.5]


def test_markdown_tables(tmp_path: Path) -> None:
    """The outcome, the widths and the rounds, in columns that line up with their heads."""
    _, markdown = write_report(write(tmp_path))
    lines = markdown.read_text().splitlines()
    assert "| MACs | 494,848 | 89,570 | 5.52× fewer |" in lines  # noqa: RUF001
    assert "| test accuracy | 98.89 % | 98.61 % | −0.28 points |" in lines  # noqa: RUF001
    assert "| 2 | conv2 | conv3 | 43.70 % | 37 | 25 |" in lines
    assert "| 1 | 1e-3 | 43.39 % | 99.30 % | 494,848 | 170,054 | 23,515 |" in lines
    tables = re.findall(r"(?:^\|.*\|\n)+", markdown.read_text(), flags=re.M)
    assert len(tables) == 4
    for table in tables:
        assert len({row.count("|") for row in table.splitlines()}) == 1


def test_markdown_tells_where_it_comes_from(tmp_path: Path) -> None:
    _, markdown = write_report(write(tmp_path))
    assert markdown.read_text().splitlines()[-1] == (
        "rsprune 0.2.0, seed 0, torch 2.13.0, processor a processor, threads 2, "
        "2026-01-15T09:30:00+00:00."
    )


def test_which_data_decided(tmp_path: Path) -> None:
    """Both reports say what accuracies are worth, and when validation is worth less."""
    told = events()
    for weights in (None, "/home/someone/trained.pt"):
        told[0]["recipe"]["weights"] = weights
        for report in write_report(write(tmp_path, told)):
            text = report.read_text()
            assert "Test accuracy is looked at once, after the run is finished" in text
            assert "the validation split of 143 images, on which the run does not train" in text
            assert ("validation accuracy looks better than it is" in text) == bool(weights)


def test_top5_is_shown_where_it_was_measured(tmp_path: Path) -> None:
    """Its rows are there, in full, and only then."""
    told = events()
    for report in write_report(write(tmp_path, told)):
        assert "top-5" not in report.read_text()
    told[-1]["before"] |= {"test_top5": 0.9289, "validation_top5": 0.931}
    told[-1]["after"] |= {"test_top5": 0.9189, "validation_top5": 0.925}
    html, markdown = write_report(write(tmp_path, told))
    lines = markdown.read_text().splitlines()
    assert "| test accuracy, top-5 | 92.89 % | 91.89 % | −1.00 points |" in lines  # noqa: RUF001
    assert "| validation accuracy, top-5 | 93.10 % | 92.50 % | −0.60 points |" in lines  # noqa: RUF001
    assert 'data-value="0.9189"' in html.read_text()


def test_latency_is_shown_where_it_was_measured(tmp_path: Path) -> None:
    """Its table, its figure and what was left out are there, and only then."""
    for report in write_report(write(tmp_path)):
        assert not re.search("Latency</h2>|## Latency", report.read_text())
    found = latency()
    found.write(tmp_path / "latency.json")
    html, markdown = write_report(tmp_path)
    lines = markdown.read_text().splitlines()
    assert (
        "| torch | 8 | 1 | 6.00 ms ±5 % | 4.00 ms ±10 % | 1.50× | 0.27 | 3.0 MB | 1.0 MB |"  # noqa: RUF001
        in lines
    )
    assert any("compile was left out: no compiler" in line for line in lines)
    assert "A &lt;fast&gt; processor" in html.read_text()
    plot = plots_of(html)["latency"]
    assert [trace["name"] for trace in plot["data"]] == ["1 thread", "2 threads"]
    assert [trace["y"] for trace in plot["data"]] == [[1.5, 4.0], [0.5]]
    assert plot["layout"]["shapes"][0]["y0"] == found.macs


def test_a_damaged_latency_file_is_named(tmp_path: Path) -> None:
    (write(tmp_path) / "latency.json").write_text("{")
    with pytest.raises(FileFormatError, match=r"latency\.json.*Delete it"):
        write_report(tmp_path)


def test_names_are_escaped(tmp_path: Path) -> None:
    """A model, layer or setting cannot add markup to the page or columns to a table."""
    told = events()
    evil = "<img src=x onerror=alert(1)></script>|**x**"
    told[0]["model"] = told[0]["recipe"]["model"] = evil
    told[-1]["layers"][0]["name"] = evil
    told[-1]["stopped"] = evil
    html, markdown = write_report(write(tmp_path, told))
    assert "<img" not in html.read_text()
    assert "<img" not in markdown.read_text()
    assert "**x**" not in markdown.read_text()
    assert plots_of(html)["widths"]["data"][0]["x"][0].startswith("&lt;img")


@pytest.mark.parametrize("why", ["2 rounds were asked for", "Round 1 was flat. Nothing was cut."])
def test_why_a_run_ended_is_a_sentence(tmp_path: Path, why: str) -> None:
    """It ends with one full stop, whether or not the engine's remark had one."""
    told = events()
    told[-1]["stopped"] = why
    for file in write_report(write(tmp_path, told)):
        assert re.search(rf"of training: {why.rstrip('.')}\.[^.]", file.read_text())


@pytest.mark.parametrize("length", range(1, len(events())))
def test_any_beginning_of_a_run(tmp_path: Path, length: int) -> None:
    """Whatever a run has told when it is killed, there is a report, which says it is unfinished."""
    html, markdown = write_report(write(tmp_path, events()[:length]))
    assert 'id="unfinished"' in html.read_text()
    assert "not finished" in markdown.read_text()


def test_a_finished_run_does_not_say_unfinished(tmp_path: Path) -> None:
    """The notice is for unfinished runs and damaged files alone."""
    html, markdown = write_report(write(tmp_path))
    assert "notice" not in re.sub(
        r"<style.*?</style>|<noscript.*?</noscript>", "", html.read_text(), flags=re.S
    )
    assert "not finished" not in markdown.read_text()


def test_damaged_lines_are_told(tmp_path: Path) -> None:
    """The reader learns that something is missing."""
    path = write(tmp_path) / "events.jsonl"
    path.write_bytes(path.read_bytes()[:-9])
    assert "1 line of events.jsonl could not be read" in write_report(tmp_path)[0].read_text()


def test_what_was_not_measured(tmp_path: Path) -> None:
    """A loss that diverged and a latency that nobody measured are absent, not zero."""
    told = events()
    told[2]["loss"] = float("nan")
    told[-1]["before"]["latency"] = told[-1]["after"]["latency"] = None
    html, markdown = write_report(write(tmp_path, told))
    assert plots_of(html)["loss"]["data"][0]["y"][0] is None
    assert "| latency, one input | – | – | – |" in markdown.read_text()  # noqa: RUF001
    assert "not measured" in html.read_text()


def test_an_uncut_model(tmp_path: Path) -> None:
    """A run whose first round already lost too much has no cut to show, and a report."""
    told = events()
    first = next(e for e in told if e["event"] == "round")
    first["after"], first["widths"] = None, []
    rest = {"round", "finetuned"}
    told = [e for e in told if e is first or e["event"] not in rest]
    html, _ = write_report(write(tmp_path, told))
    assert plots_of(html)["sizes"]["data"][0]["y"] == [1.0]


def test_missing_run(tmp_path: Path) -> None:
    """No events, no report, and nothing is written."""
    with pytest.raises(RunError, match=r"events\.jsonl"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    """The error names the file, and nothing half written is left."""
    (write(tmp_path) / "report.html").mkdir()
    with pytest.raises(StorageError, match=r"report\.html"):
        write_report(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["events.jsonl", "report.html"]


@pytest.mark.parametrize("package", ["jinja2", "plotly.offline"])
def test_without_its_packages(
    tmp_path: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the extra to install, and nothing is written."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(RsPruneError, match=r'pip install "rsprune\[cli\]"'):
        write_report(write(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["events.jsonl"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (numbers.short(89_570), "89,570"),
        (numbers.short(313_725_952), "313.7 M"),
        (numbers.short(4_089_184_256), "4.089 G"),
        (numbers.seconds(0.000412), "412 µs"),
        (numbers.seconds(0.0125), "12.50 ms"),
        (numbers.seconds(61.25), "61.2 s"),
        (numbers.seconds(7500), "2 h 05 min"),
        (numbers.penalty(1e-3), "1e-3"),
        (numbers.penalty(3.5e-4), "3.5e-4"),
        (numbers.penalty(0), "0"),
        (numbers.ratio(10, 0, "fewer"), "\N{EN DASH}"),
        (numbers.ratio(72, 10, "fewer parameters"), "7.2\N{MULTIPLICATION SIGN} fewer parameters"),
        (numbers.ratio(10, 11, "fewer parameters"), "1.1\N{MULTIPLICATION SIGN} more parameters"),
        (numbers.ratio(10, 10, "fewer parameters"), "as many parameters"),
        (numbers.ratio(1, 2, "faster"), "2\N{MULTIPLICATION SIGN} slower"),
        (numbers.ratio(1000, 1001, "faster"), "about as fast"),
        (numbers.points(0.9, 0.9000001), "±0.00 points"),
    ],
)  # fmt: skip
def test_numbers(text: str, shown: str) -> None:
    """Numbers are short and keep their meaning."""
    assert text == shown
