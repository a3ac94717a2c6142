"""Figures of the report as SVG files, for pages without JavaScript; drawn by matplotlib."""

from __future__ import annotations

import colorsys
import io
import math
import re
from html import unescape
from importlib import import_module
from typing import TYPE_CHECKING, Any

from rsprune.errors import RsPruneError
from rsprune.report.plots import LINE, Figure, Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

PICTURES = ("sparsity", "widths", "accuracy")  # of a published run, as NAME.svg
_WIDTH = 10.0  # inches, of 72 points
_MANY = 24  # pairs of bars that have room for their numbers
_LETTERS = 110  # of names that have room side by side
_INK, _SOFT = "#1d2733", "#4c5661"
_STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#9aa3ad",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": _SOFT,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "figure.constrained_layout.h_pad": 0.1,  # inches
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.w_pad": 0.1,
    "font.sans-serif": ["DejaVu Sans", "Verdana"],  # the first comes with matplotlib
    "font.size": 10,
    "grid.color": "#e4e6e3",
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "rsprune",  # the same figure is the same file
    "text.color": _INK,
    "text.parse_math": False,
    "xtick.color": _SOFT,
    "ytick.color": _SOFT,
    "ytick.left": False,
}


def to_svg(figure: Figure) -> bytes:
    """The figure as a picture; the same figure gives the same bytes.

    Raises:
        RsPruneError: if matplotlib is not installed.
    """
    matplotlib = _package("matplotlib")
    layout = figure.layout
    with matplotlib.rc_context(_STYLE):
        canvas: Canvas = _package("matplotlib.figure").Figure((_WIDTH, layout["height"] / 90))
        axes = canvas.subplots()
        for shape in layout.get("shapes", ()):
            _draw_shape(axes, shape)
        for note in layout.get("annotations", ()):
            place = axes.get_xaxis_transform()
            axes.text(note["x"], 1.015, note["text"], transform=place, ha="center", va="bottom")
        if figure.data[0]["type"] == "bar":
            _draw_bars(axes, figure.data)
        else:
            for trace in figure.data:
                _draw_line(axes, trace)
        _set_axes(axes, layout)
        axes.set_title(figure.title, pad=24 if layout.get("annotations") else 10)
        _explain(canvas, axes, figure)
        file = io.BytesIO()
        canvas.savefig(file, format="svg", metadata={"Date": None, "Title": figure.title})
    return re.sub(rb"(\.\d\d)\d{3,}", rb"\1", file.getvalue())  # hundredths of a point are enough


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise RsPruneError('Pictures need matplotlib: pip install "rsprune[pictures]"') from error


def _draw_shape(axes: Axes, shape: dict[str, Any]) -> None:
    """A band of a phase, or the border between two stages."""
    if shape["type"] == "rect":
        colour = _colour(shape["fillcolor"])
        axes.axvspan(shape["x0"], shape["x1"], color=colour, lw=0, label=f"{shape['name']} phase")
    else:
        axes.axvline(shape["x0"], color=_colour(LINE), lw=1)


def _draw_line(axes: Axes, trace: Trace) -> None:
    x, y = ([math.nan if v is None else v for v in trace[axis]] for axis in ("x", "y"))
    look: dict[str, Any] = {"color": _colour(trace["line"]["color"]), "lw": 1.4}
    if trace["line"].get("dash"):
        look = {"color": _INK, "lw": 2.6, "ls": ":"}
    elif trace.get("showlegend") is False:  # one of many
        look |= {"lw": 1, "alpha": 0.8}
    marker = "o" if trace["mode"] == "markers" else ""
    axes.plot(x, y, marker=marker, label=unescape(trace["name"]), **look)


def _draw_bars(axes: Axes, traces: list[Trace]) -> None:
    """Groups of bars, with their numbers where there is room."""
    names = [unescape(name) for name in traces[0]["x"]]
    many = len(names) > _MANY
    share = 0.8 / len(traces)
    for i, trace in enumerate(traces):
        places = [x + share * (i - (len(traces) - 1) / 2) for x in range(len(names))]
        found = axes.bar(places, trace["y"], share, color=trace["marker"]["color"],
                         label=trace["name"])  # fmt: skip
        if not many:
            axes.bar_label(found, fontsize=7, padding=1)
    slant: dict[str, Any] = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
    if many:
        slant = {"rotation": 90, "fontsize": 7}
    elif max(map(len, names)) * len(names) <= _LETTERS:
        slant = {}
    axes.set_xticks(range(len(names)), names, **slant)
    axes.set_xlim(-0.7, len(names) - 0.3)


def _set_axes(axes: Axes, layout: dict[str, Any]) -> None:
    for axis, settings in ((axes.xaxis, layout["xaxis"]), (axes.yaxis, layout["yaxis"])):
        axis.set_label_text(settings.get("title", {}).get("text", ""))
        if "tickformat" in settings:
            axis.set_major_formatter(_package("matplotlib.ticker").PercentFormatter(1, 0))
    for limit, settings in ((axes.set_xlim, layout["xaxis"]), (axes.set_ylim, layout["yaxis"])):
        if "range" in settings:
            limit(*settings["range"])


def _explain(canvas: Canvas, axes: Axes, figure: Figure) -> None:
    """Name what has a colour: a legend below, and a bar for more lines than it can hold."""
    unnamed = [trace for trace in figure.data if trace.get("showlegend") is False]
    hidden = {unescape(trace["name"]) for trace in unnamed}
    found = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    shown = {name: handle for name, handle in found.items() if name not in hidden}
    if len(shown) > 1:
        canvas.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=6)
    if unnamed:
        colours = [_colour(trace["line"]["color"]) for trace in unnamed]
        scale = _package("matplotlib.cm").ScalarMappable(
            cmap=_package("matplotlib.colors").ListedColormap(colours)
        )
        bar: Any = canvas.colorbar(scale, ax=axes, ticks=(0, 1), pad=0.02, aspect=40)
        first, last = (unescape(unnamed[i]["name"]) for i in (0, -1))
        bar.solids.set_edgecolor("face")  # no seams
        bar.set_ticklabels([f"first layer\n{first}", f"last layer\n{last}"])


def _colour(css: str) -> Any:
    """``rgba(...)`` and ``hsl(...)``, as matplotlib takes colours."""
    values = [float(value) for value in re.findall(r"[\d.]+", css)]
    if css.startswith("rgba"):
        return (*(value / 255 for value in values[:3]), values[3])
    if css.startswith("hsl"):
        return colorsys.hls_to_rgb(values[0] / 360, values[2] / 100, values[1] / 100)
    return css
