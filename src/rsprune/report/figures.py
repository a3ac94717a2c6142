"""The report's figures: what each shows, and says to those who do not see it."""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape
from typing import Any

from rsprune.report import numbers
from rsprune.report.plots import (
    AFTER,
    BEFORE,
    LINE,
    NAMED,
    WARM,
    Figure,
    bands,
    bars,
    borders,
    curve,
    epoch_axis,
    hue,
    labelled,
    layout_of,
    round_names,
    small,
    stage_names,
    training,
)
from rsprune.report.run import Epoch, Run
from rsprune.report.tables import outcomes


def figures(run: Run) -> dict[str, Figure]:
    """Every figure that the run has the data for, by name."""
    makers: tuple[tuple[bool, Callable[[Run], Figure]], ...] = (
        (bool(_widths(run)), widths),
        (any(e.layers for e in _sparse(run)), sparsity),
        (run.latency is not None, latency),
        (bool(run.rounds), penalties),
        (bool(run.rounds), sparsities),
        (bool(run.rounds), sizes),
        (len(_tradeoff(run)) > 1, tradeoff),
        (bool(run.epochs), accuracy),
        (bool(run.epochs), loss),
    )
    return {figure.name: figure for wanted, make in makers if wanted for figure in [make(run)]}


def widths(run: Run) -> Figure:
    """Output channels of every layer, before and after."""
    rows = _widths(run)
    names = [escape(name) for name, _, _ in rows]
    data: list[dict[str, Any]] = [
        bars(names, [row[1] for row in rows], "before", BEFORE),
        bars(names, [row[2] for row in rows], "after", AFTER),
    ]
    if len(rows) <= NAMED:
        for trace in data:
            trace |= {"text": trace["y"], "textposition": "outside", "cliponaxis": False}
    layout = layout_of(
        xaxis={"type": "category", "tickangle": "auto" if len(rows) <= NAMED else -60},
        yaxis={"title": {"text": "channels"}, "rangemode": "tozero"},
        barmode="group",
        bargap=0.28,
        bargroupgap=0.06,
    )
    said = ", ".join(f"{name} {old} to {new}" for name, old, new in rows)
    alt = f"Grouped bars: output channels of {len(rows)} layers, before and after. {said}."
    return Figure("widths", "Widths before and after", alt, data, layout, span=20 * len(rows))


def sparsity(run: Run) -> Figure:
    """The sparsity of every layer and of the whole, over the phases of the sparse epochs."""
    epochs = _sparse(run)
    names = list(dict.fromkeys(name for e in epochs for name in e.layers))
    few = len(names) <= NAMED
    data = [
        curve(
            epochs,
            escape(name.removesuffix(".weight")),
            _layer_sparsity(name),
            hue(i, len(names)),
        )
        | {"showlegend": few}
        for i, name in enumerate(names)
    ]
    total = curve(epochs, "all layers", lambda e: e.sparsity, BEFORE)
    data.append(total | {"line": {"color": BEFORE, "width": 4, "dash": "dot"}})
    layout = layout_of(
        xaxis=epoch_axis(epochs) | {"title": {"text": "epoch of sparse training"}},
        yaxis={"title": {"text": "zeros"}, "tickformat": ".0%", "range": [-0.02, 1.02]},
        shapes=bands(epochs) + borders(epochs),
        annotations=stage_names(epochs),
        height=460,
        margin={"l": 56, "r": 16, "t": 76, "b": 48},
    )
    alt = (
        f"Lines: share of zero weights of {len(names)} layers over {len(epochs)} epochs, with the "
        f"optimizer's phases as bands. The last one has {numbers.percent(epochs[-1].sparsity)} "
        "zeros."
    )
    return Figure(
        "sparsity", "Sparsity per layer over sparse training", alt, data, layout, span=560
    )


def latency(run: Run) -> Figure:
    """The speed-up in every runtime and batch size, beside the ratio of the MACs."""
    assert run.latency is not None
    rows, macs = run.latency.rows, run.latency.macs
    counts = sorted({row.threads for row in rows})
    data = []
    for i, count in enumerate(counts):
        mine = [row for row in rows if row.threads == count]
        names = [f"{row.runtime}<br>batch {row.batch}" for row in mine]
        words = f"{count} thread{'s' * (count != 1)}"
        trace = bars(names, [row.speedup for row in mine], words, hue(i, 2 * len(counts)))
        data.append(trace | {"hovertemplate": "%{y:.2f}"})
    ratio = {"xref": "paper", "x0": 0, "x1": 1, "y0": macs, "y1": macs}
    layout = layout_of(
        xaxis={"type": "category"},
        yaxis={"title": {"text": "times faster"}, "rangemode": "tozero"},
        shapes=[{"type": "line", **ratio, "line": {"color": WARM, "width": 2, "dash": "dot"}}],
        barmode="group",
        bargap=0.28,
        bargroupgap=0.06,
        showlegend=True,
    )
    said = ", ".join(
        f"{row.runtime} batch {row.batch} threads {row.threads}: {numbers.times(row.speedup)}"
        for row in rows
    )
    alt = f"Bars: the measured speed-up. {said}. {numbers.ratio(macs, 1, 'fewer MACs')}."
    places = len({(row.runtime, row.batch) for row in rows})
    return Figure("latency", "Speed-up", alt, data, layout, span=72 * places)


def penalties(run: Run) -> Figure:
    """lambda by round."""
    values = [r.lam for r in run.rounds]
    data = [
        {
            "type": "scatter",
            "mode": "lines+markers+text",
            "name": "lambda",
            "x": round_names(run.rounds),
            "y": values,
            "text": [numbers.penalty(v) for v in values],
            "textposition": "top center",
            "cliponaxis": False,
            "marker": {"color": WARM, "size": 11},
            "line": {"color": WARM, "width": 2},
        }
    ]
    axis: dict[str, Any] = {"visible": False}
    if min(values) > 0:  # a logarithmic axis, with room for the labels
        axis |= {"type": "log", "range": [math.log10(min(values) / 3), math.log10(max(values) * 3)]}
    return small("penalties", "Penalty lambda", data, axis)


def sparsities(run: Run) -> Figure:
    """The sparsity that every round found."""
    values = [r.sparsity for r in run.rounds]
    data = [labelled(run.rounds, values, "sparsity", WARM)]
    axis = {"visible": False, "range": [0, 1.15]}
    return small("sparsities", "Sparsity found", data, axis)


def sizes(run: Run) -> Figure:
    """The multiply-accumulates that every round left, against the original."""
    full = run.rounds[0].before.macs
    values = [(r.after or r.before).macs / full for r in run.rounds]
    data = [labelled(run.rounds, values, "MACs left", AFTER)]
    axis = {"visible": False, "range": [0, 1.15]}
    return small("sizes", "MACs left, of the original", data, axis)


def tradeoff(run: Run) -> Figure:
    """Accuracy against multiply-accumulates: baseline, each round's model, the result."""
    stops = _tradeoff(run)
    macs = [stop[1] for stop in stops]
    colours = [BEFORE if name == "baseline" else AFTER if name == "result" else WARM
               for name, _, _ in stops]  # fmt: skip
    data: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines+markers+text",
            "name": "validation",
            "x": macs,
            "y": [stop[2] for stop in stops],
            "text": [stop[0] for stop in stops],
            "textposition": [_beside(name, m > 0.6 * max(macs)) for name, m, _ in stops],
            "cliponaxis": False,
            "marker": {"color": colours, "size": 13},
            "line": {"color": LINE, "width": 1.5, "dash": "dot"},
        }
    ]
    before, after = outcomes(run)
    tested = [o for o in (before, after) if o is not None and o.test_accuracy is not None]
    if tested:
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "test, reported only",
                "x": [o.cost.macs for o in tested],
                "y": [o.test_accuracy for o in tested],
                "cliponaxis": False,
                "marker": {"color": BEFORE, "size": 11, "symbol": "diamond-open"},
            }
        )
    layout = layout_of(
        xaxis={"title": {"text": "multiply-accumulates"}, "rangemode": "tozero"},
        yaxis={"title": {"text": "accuracy"}, "tickformat": ".1%", "range": _around(data)},
        hovermode="closest",
    )
    said = "; ".join(
        f"{name}: {numbers.short(m)} MACs, {numbers.percent(a)}" for name, m, a in stops
    )
    alt = f"Points: accuracy on the validation data against MACs. {said}."
    return Figure("tradeoff", "Accuracy against MACs", alt, data, layout)


def accuracy(run: Run) -> Figure:
    """Accuracy on training and validation data over all epochs."""
    data = [
        curve(run.epochs, "training", lambda e: e.accuracy, BEFORE),
        curve(run.epochs, "validation", lambda e: e.validation_accuracy, AFTER),
    ]
    return training(run.epochs, "accuracy", "Accuracy", data, {"tickformat": ".0%"})


def loss(run: Run) -> Figure:
    """The training loss over all epochs."""
    data = [curve(run.epochs, "training", lambda e: e.loss, WARM)]
    return training(run.epochs, "loss", "Training loss", data, {"rangemode": "tozero"})


def _widths(run: Run) -> list[tuple[str, int, int]]:
    """Names, widths before and after: of the layers, or of channel groups before the end."""
    if run.finish and run.finish.layers:
        return [(c.name, c.shape_before[0], c.shape_after[0]) for c in run.finish.layers]
    found: dict[str, tuple[int, int]] = {}
    for width in (width for round in run.rounds for width in round.widths):
        first = found.get(width.group, (width.before, 0))[0]
        found[width.group] = (first, width.after)
    return [(name, *pair) for name, pair in found.items()]


def _tradeoff(run: Run) -> list[tuple[str, int, float]]:
    """The models that were evaluated on the validation data: name, MACs, accuracy."""
    stops: list[tuple[str, int, float | None]] = []
    before, _ = outcomes(run)
    if before is not None:
        stops.append(("baseline", before.cost.macs, before.validation_accuracy))
    stops += [(f"round {r.round + 1}, sparse", r.before.macs, r.accuracy) for r in run.rounds]
    cuts = {r.round: r.after.macs for r in run.rounds if r.after is not None}
    result = run.finish.after.cost.macs if run.finish is not None else None
    stops += [  # what was fine-tuned, but not kept in the end, or not yet
        (f"round {number + 1}, tuned", cuts[number], value)
        for number, value in run.finetuned.items()
        if number in cuts and cuts[number] != result
    ]
    if run.finish is not None:
        after = run.finish.after
        stops.append(("result", after.cost.macs, after.validation_accuracy))
    return [(name, macs, value) for name, macs, value in stops if value is not None]


def _beside(name: str, right: bool) -> str:
    """Where a point's label goes: rounds below, towards the middle of the figure."""
    return f"{'bottom' if name.startswith('round') else 'top'} {'left' if right else 'right'}"


def _sparse(run: Run) -> list[Epoch]:
    """The epochs in which zeros are made."""
    return [e for e in run.epochs if e.stage == "explore"]


def _layer_sparsity(name: str) -> Callable[[Epoch], float | None]:
    return lambda epoch: epoch.layers.get(name)


def _around(traces: list[dict[str, Any]]) -> list[float]:
    """A range of accuracies with room for labels above and below."""
    values = [value for trace in traces for value in trace["y"]]
    room = max(0.18 * (max(values) - min(values)), 0.002)
    return [min(values) - room, max(values) + room]
