"""The report as one HTML page that needs nothing else: no network, no other file."""

from __future__ import annotations

from importlib import import_module
from importlib.resources import files
from typing import Any

from rsprune.errors import RsPruneError
from rsprune.report import numbers, tables
from rsprune.report.figures import figures
from rsprune.report.plots import PHASES
from rsprune.report.run import Run


def to_html(run: Run) -> str:
    """The run as a page; every text of the run is escaped."""
    jinja2, plotly_js = _packages()
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    shown = figures(run)
    template = files("rsprune.report").joinpath("templates/report.html.j2").read_text("utf-8")
    page: str = environment.from_string(template).render(
        run=run,
        cards=tables.cards(run),
        figures=shown,
        plots={name: {"data": f.data, "layout": f.layout} for name, f in shown.items()},
        sentence=tables.sentence(run),
        headline=tables.headline(run),
        latency=tables.latency(run),
        measured=tables.measured(run),
        layers=tables.layers(run),
        widths=tables.widths(run),
        rounds=tables.rounds(run),
        recipe=tables.recipe(run),
        environment=tables.environment(run),
        phases={e.phase: PHASES[e.phase] for e in run.epochs if e.phase in PHASES},
        unfinished=tables.UNFINISHED,
        decided=tables.decided(run),
        numbers=numbers,
        plotly_js=plotly_js,
    )
    return page


def _packages() -> tuple[Any, str]:
    """jinja2, and the text of plotly.js."""
    try:
        jinja2, plotly = import_module("jinja2"), import_module("plotly.offline")
    except ModuleNotFoundError as error:
        raise RsPruneError(
            f"The report needs a package that is not installed ({error.name}). "
            'Install it with: pip install "rsprune[cli]"'
        ) from error
    return jinja2, plotly.get_plotlyjs()
