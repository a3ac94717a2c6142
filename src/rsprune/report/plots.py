"""The parts of the figures, as plain data for plotly.js.

Colours are legible on light and on dark; those of text and grids are set in the page.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rsprune.report import numbers
from rsprune.report.run import Epoch, Round

BEFORE, AFTER, WARM = "#98a4b5", "#12908a", "#c8772e"
LINE = "rgba(128, 136, 148, 0.55)"
PHASES = {
    "prox": "rgba(72, 126, 214, 0.16)",
    "orthant": "rgba(228, 148, 44, 0.19)",
    "half-space": "rgba(150, 92, 208, 0.17)",
}
NAMED = 10  # lines that a legend can name
_ROOM = 0.09  # the share of all epochs from which on a stage has room for its name
_STAGES = {"baseline": "baseline", "explore": "explore", "finetune": "fine-tune"}

Trace = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """A figure and what it says in words.

    Attributes:
        name: its id in the page.
        alt: what it shows, for those who do not see it.
        span: its least width in pixels; it scrolls on narrower screens.
    """

    name: str
    title: str
    alt: str
    data: list[Trace]
    layout: dict[str, Any]
    span: int = 0


def layout_of(**more: Any) -> dict[str, Any]:
    """A calm layout: no frame, a legend above, nothing to drag on a phone."""
    return {
        "height": 380,
        "margin": {"l": 56, "r": 16, "t": 56, "b": 48},
        "dragmode": False,
        "hovermode": "x unified",
        "legend": {"orientation": "h", "x": 0, "y": 1, "yanchor": "top", "yref": "container"},
        **more,
    }


def bars(names: list[str], values: Sequence[float], name: str, colour: str) -> Trace:
    """Bars of one colour over ``names``."""
    marker = {"color": colour, "line": {"width": 0}}
    return {"type": "bar", "name": name, "x": names, "y": list(values), "marker": marker}


def curve(
    epochs: Sequence[Epoch], name: str, value: Callable[[Epoch], float | None], colour: str
) -> Trace:
    """A line over all epochs, with a gap between two stages."""
    x: list[float | None] = []
    y: list[float | None] = []
    for first, stage in _stages(epochs):
        x += [*range(first, first + len(stage)), None]
        y += [*map(value, stage), None]
    return {
        "type": "scatter",
        "mode": "lines" if len(epochs) > 1 else "markers",
        "name": name,
        "x": x[:-1],
        "y": y[:-1],
        "line": {"color": colour, "width": 2},
        "hovertemplate": "%{y}",
    }


def labelled(
    rounds: Sequence[Round], values: Sequence[float | None], name: str, colour: str
) -> Trace:
    """Bars over the rounds, each with its value as a percentage."""
    text = [numbers.percent(value) for value in values]
    marker = {"color": colour, "line": {"width": 0}}
    return {
        "type": "bar",
        "name": name,
        "x": round_names(rounds),
        "y": list(values),
        "text": text,
        "textposition": "outside",
        "textangle": 0,
        "cliponaxis": False,
        "marker": marker,
        "hoverinfo": "skip",
    }


def round_names(rounds: Sequence[Round]) -> list[str]:
    """What the axis calls the rounds."""
    return [f"round {round.round + 1}" for round in rounds]


def small(name: str, title: str, data: list[Trace], yaxis: dict[str, Any]) -> Figure:
    """A small figure over the rounds, without an axis: every point says its value."""
    layout = layout_of(
        height=220,
        margin={"l": 12, "r": 12, "t": 12, "b": 28},
        xaxis={"type": "category"},
        yaxis=yaxis,
        showlegend=False,
        bargap=0.45,
        hovermode=False,
    )
    pairs = zip(data[0]["x"], data[0]["text"], strict=True)
    said = ", ".join(f"{x} {text}" for x, text in pairs)
    return Figure(name, title, f"{title} by round: {said}.", data, layout)


def training(
    epochs: Sequence[Epoch], name: str, title: str, data: list[Trace], yaxis: dict[str, Any]
) -> Figure:
    """A figure over all epochs of the run."""
    layout = layout_of(
        height=320,
        xaxis=epoch_axis(epochs),
        yaxis=yaxis,
        shapes=borders(epochs),
        annotations=stage_names(epochs),
        showlegend=len(data) > 1,
    )
    alt = f"Lines: {title.lower()} over {len(epochs)} epochs of {len(_stages(epochs))} stages."
    return Figure(name, title, alt, data, layout)


def epoch_axis(epochs: Sequence[Epoch]) -> dict[str, Any]:
    """All stages one after the other."""
    return {"title": {"text": "epoch"}, "range": [0.5, len(epochs) + 0.5], "zeroline": False}


def bands(epochs: Sequence[Epoch]) -> list[dict[str, Any]]:
    """The optimizer's phases as shaded bands."""
    shapes, at = [], 0.5
    for phase, members in groupby(epochs, key=lambda e: e.phase):
        end = at + len(list(members))
        if phase in PHASES:
            shapes.append(
                _upright("rect", at, end)
                | {"fillcolor": PHASES[phase], "line": {"width": 0}, "name": phase}
            )
        at = end
    return shapes


def borders(epochs: Sequence[Epoch]) -> list[dict[str, Any]]:
    """A line where one stage ends and the next begins."""
    line = {"color": LINE, "width": 1}
    return [_upright("line", x - 0.5, x - 0.5) | {"line": line} for x, _ in _stages(epochs)[1:]]


def stage_names(epochs: Sequence[Epoch]) -> list[dict[str, Any]]:
    """The names of the stages, above it, where there is room for them."""
    return [
        {
            "text": _stage_name(stage[0]),
            "x": first - 0.5 + len(stage) / 2,
            "y": 1,
            "yref": "paper",
            "yanchor": "bottom",
            "showarrow": False,
            "font": {"size": 11},
        }
        for first, stage in _stages(epochs)
        if len(stage) >= _ROOM * len(epochs)
    ]


def hue(position: int, of: int) -> str:
    """A colour from teal (the first layer) to rose (the last), equally light."""
    return f"hsl({175 + 165 * position // max(of - 1, 1)}, 52%, 52%)"


def _upright(kind: str, left: float, right: float) -> dict[str, Any]:
    place = {"x0": left, "x1": right, "yref": "paper", "y0": 0, "y1": 1}
    return {"type": kind, "layer": "below", **place}


def _stages(epochs: Sequence[Epoch]) -> list[tuple[int, list[Epoch]]]:
    """The epochs of every stage, with the number of the first one, counted over the run."""
    found, first = [], 1
    for _, members in groupby(epochs, key=lambda e: (e.stage, e.round)):
        stage = list(members)
        found.append((first, stage))
        first += len(stage)
    return found


def _stage_name(epoch: Epoch) -> str:
    name = _STAGES.get(epoch.stage, epoch.stage)
    return f"{name} {epoch.round + 1}" if epoch.stage == "explore" else name
