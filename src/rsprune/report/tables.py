"""What a run comes to, as tables of text; HTML and Markdown show the same ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from rsprune.metrics.latency import Latency
from rsprune.report import numbers
from rsprune.report.run import Outcome, Run

MACS, PARAMS, TESTED, LATENCY = "MACs", "parameters", "test accuracy", "latency, one input"
UNFINISHED = "This run has not finished: what follows is what there is so far."


@dataclass(frozen=True)
class Cell:
    """A text to show, and the value of the events it stands for, as JSON; "" for no value."""

    text: str
    value: str = ""


@dataclass(frozen=True)
class Table:
    """Rows under heads; the first ``words`` columns are text, the others numbers."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    words: int = 1


def outcomes(run: Run) -> tuple[Outcome | None, Outcome | None]:
    """The model before and after, as far as the run has come."""
    if run.finish is not None:
        return run.finish.before, run.finish.after
    cuts = [r.after for r in run.rounds if r.after is not None]
    return run.baseline, Outcome(cuts[-1], None, None, None) if cuts else None


def headline(run: Run) -> Table:
    """Everything that was measured, before and after, in full."""
    rows = []
    for measure in measures(run):
        old, new = (_cell(value, measure.show) for value in (measure.before, measure.after))
        rows.append((Cell(measure.name), old, new, Cell(measure.change)))
    return Table("Before and after", ("", "before", "after", "change"), tuple(rows))


def cards(run: Run) -> list[tuple[Cell, ...]]:
    """The four measures that matter most, in short: name, before, after, change."""
    found = measures(run)
    shown: list[tuple[Cell, ...]] = []
    for measure in [*(one for one in found if one.name in (MACS, PARAMS, TESTED)), found[-1]]:
        name = measure.name
        show = numbers.short if measure.show is numbers.count else measure.show
        old, new = (_cell(value, show) for value in (measure.before, measure.after))
        shown.append((Cell(name), old, new, Cell(measure.change)))
    return shown


@dataclass(frozen=True)
class Measure:
    """A number of the model before and after, how to show it, and how it changed, in words."""

    name: str
    before: float | None
    after: float | None
    show: Callable[[Any], str]
    change: str


def measures(run: Run) -> list[Measure]:
    """What is known of the model before and after; top-5 only where it was measured."""
    found = []
    for name, get, show, change in _MEASURES:
        old, new = (get(o) if o is not None else None for o in outcomes(run))
        if name not in _TOP5 or new is not None:
            found.append(Measure(name, old, new, show, change(old, new)))
    return [*found, _time(run)]


def _time(run: Run) -> Measure:
    """The fastest runtime at the smallest batch with most threads; else what the run measured."""
    if run.latency is None:
        old, new = (None if o is None else o.latency for o in outcomes(run))
        return Measure(LATENCY, old, new, numbers.seconds, _faster(old, new))
    best = min(run.latency.first_rows, key=lambda row: row.compressed.median)
    old, new = best.original.median, best.compressed.median
    name = f"latency, {best.runtime}, batch {best.batch}"
    return Measure(name, old, new, numbers.seconds, _faster(old, new))


_fewer = partial(numbers.ratio, word="fewer")
_faster = partial(numbers.ratio, word="faster")
_TOP5 = ("test accuracy, top-5", "validation accuracy, top-5")
_MEASURES: tuple[tuple[str, Callable[[Outcome], Any], Callable[[Any], str], Any], ...] = (
    (MACS, lambda o: o.cost.macs, numbers.count, _fewer),
    (PARAMS, lambda o: o.cost.params, numbers.count, _fewer),
    ("weights of layers", lambda o: o.cost.weights, numbers.count, _fewer),
    (TESTED, lambda o: o.test_accuracy, numbers.percent, numbers.points),
    (_TOP5[0], lambda o: o.test_top5, numbers.percent, numbers.points),
    ("validation accuracy", lambda o: o.validation_accuracy, numbers.percent, numbers.points),
    (_TOP5[1], lambda o: o.validation_top5, numbers.percent, numbers.points),
)


def latency(run: Run) -> Table:
    """Every runtime, batch size and number of threads, if that was measured."""
    heads = (
        "runtime", "batch", "threads", "before", "after", "speed-up", "efficiency",
        "memory before", "memory after",
    )  # fmt: skip
    rows = (
        (
            Cell(row.runtime),
            _cell(row.batch, numbers.count),
            _cell(row.threads, numbers.count),
            _spread(row.original),
            _spread(row.compressed),
            _cell(row.speedup, numbers.times),
            _cell(row.efficiency, lambda value: f"{value:.2f}"),
            _cell(row.original.memory, numbers.size),
            _cell(row.compressed.memory, numbers.size),
        )
        for row in (run.latency.rows if run.latency else ())
    )
    return Table("Latency", heads, tuple(rows))


def measured(run: Run) -> str:
    """How the latencies came about, and what is not among them."""
    if run.latency is None:
        return ""
    said = (
        f"Medians of runs in which both models took turns, on {run.latency.machine['cpu']}; ± is "
        "half the distance of the quartiles. The efficiency is the speed-up divided by the ratio "
        f"of the MACs, {numbers.times(run.latency.macs)}. Memory is that of the weights, and what "
        "one run adds at its peak."
    )
    left_out = (f" {name} was left out: {why}" for name, why in run.latency.left_out.items())
    return said + "".join(left_out)


def layers(run: Run) -> Table:
    """Every layer's weight and cost, before and after; of a finished run."""
    changes = run.finish.layers if run.finish else ()
    rows = (
        (
            Cell(layer.name or "(model)"),
            _cell(list(layer.shape_before), numbers.shape),
            _cell(list(layer.shape_after), numbers.shape),
            _cell(layer.macs_before, numbers.count),
            _cell(layer.macs_after, numbers.count),
            Cell(numbers.ratio(layer.macs_before, layer.macs_after, "fewer")),
        )
        for layer in changes
    )
    heads = ("layer", "weight before", "weight after", "MACs before", "MACs after", "change")
    return Table("Layers before and after", heads, tuple(rows))


def widths(run: Run) -> Table:
    """Which sparsity shrank which channels, round by round."""
    rows = (
        (
            Cell(str(round.round + 1)),
            Cell(width.group),
            Cell(width.driver or numbers.ABSENT),
            _cell(width.sparsity, numbers.percent),
            _cell(width.before, numbers.count),
            _cell(width.after, numbers.count),
        )
        for round in run.rounds
        for width in round.widths
    )
    heads = ("round", "channels of", "decided by", "its sparsity", "from", "to")
    cut = run.start.recipe.get("compress", {})
    named = ("target_macs", "target_params", "target_latency")
    targets = [f"{name} = {cut[name]:g}" for name in named if cut.get(name)]
    scaled = f", the rule's scaled to {' and '.join(targets)}" if targets else ""
    by_cost = cut.get("spread") == "cost" or any(round.by_cost for round in run.rounds)
    scaled += " and by what a weight costs" if by_cost else ""
    return Table(f"Widths, round by round{scaled}", heads, tuple(rows), words=3)


def rounds(run: Run) -> Table:
    """The recursion: penalty, sparsity found, accuracy, size before and after the cut."""
    rows = (
        (
            Cell(str(round.round + 1)),
            _cell(round.lam, numbers.penalty),
            _cell(round.sparsity, numbers.percent),
            _cell(round.accuracy, numbers.percent),
            _cell(round.before.macs, numbers.count),
            _cell(round.after.macs if round.after else None, numbers.count),
            _cell(round.after.params if round.after else None, numbers.count),
        )
        for round in run.rounds
    )
    heads = (
        "round",
        "lambda",
        "sparsity",
        "validation accuracy before the cut",
        "MACs before",
        "MACs after",
        "parameters after",
    )
    return Table("Rounds of the recursion", heads, tuple(rows))


def recipe(run: Run) -> list[Table]:
    """The recipe, a table for each of its sections, the settings without a section first."""
    given = run.start.recipe
    loose = {name: v for name, v in given.items() if not isinstance(v, Mapping)}
    sections = {name: v for name, v in given.items() if isinstance(v, Mapping) and v}
    return [settings("run", loose), *(settings(name, v) for name, v in sections.items())]


def settings(caption: str, values: Mapping[str, Any]) -> Table:
    """Names and what they are set to."""
    rows = ((Cell(name), Cell(_plain(value), _json(value))) for name, value in values.items())
    return Table(caption, ("setting", "value"), tuple(rows), words=2)


def environment(run: Run) -> Table:
    """Where the run was made, and from which file of weights."""
    digest = run.start.weights_sha256
    weights = {} if digest is None else {"weights, SHA-256": digest}
    return settings("Environment", {**run.start.environment, **weights})


def sentence(run: Run) -> str:
    """The outcome in one sentence."""
    before, after = outcomes(run)
    if before is None or after is None:
        return "Nothing has been cut yet."
    macs = numbers.ratio(before.cost.macs, after.cost.macs, "fewer multiply-accumulates")
    params = numbers.ratio(before.cost.params, after.cost.params, "fewer parameters")
    said = f"{macs} and {params}"
    if before.test_accuracy is None or after.test_accuracy is None:
        return f"{said}."
    change = numbers.points(before.test_accuracy, after.test_accuracy)
    return f"{said}, at {numbers.percent(after.test_accuracy)} test accuracy ({change})."


def decided(run: Run) -> str:
    """Which data decided, and what their accuracy is worth."""
    size = run.start.sizes.get("validation")
    split = "the validation split" + (f" of {numbers.count(size)} images" if size else "")
    said = (
        "Test accuracy is looked at once, after the run is finished, on the first and on the last "
        "model; it decides nothing. Every choice of the run (when to stop, which model to keep) is "
        f"made on {split}, on which the run does not train."
    )
    if run.start.recipe.get("weights"):
        said += (
            " The run began with trained weights: if they were trained on these same images, "
            "validation accuracy looks better than it is, and shows regressions only."
        )
    return said


def _spread(side: Latency) -> Cell:
    spread = (side.high - side.low) / 2 / side.median
    return Cell(f"{numbers.seconds(side.median)} ±{100 * spread:.0f} %", _json(side.median))


def _cell(value: Any, show: Any) -> Cell:
    return Cell(show(value), _json(value))


def _json(value: Any) -> str:
    return json.dumps(value)


def _plain(value: Any) -> str:
    if value is None:
        return numbers.ABSENT
    return value if isinstance(value, str) else _json(value)
