"""``rsprune doctor``: what is installed and usable here, and what to do about what is not."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.table import Table

import rsprune
from rsprune.cli.progress import make_console
from rsprune.data import cache_directory
from rsprune.data.cifar10 import is_there
from rsprune.data.fashion_mnist import DEBIAN_DIRECTORY

# What each extra brings; rsprune itself needs only the first line.
EXTRAS = {
    "": ("torch", "numpy", "safetensors"),
    "cli": ("accelerate", "jinja2", "optuna", "plotly", "pydantic", "rich", "tomli-w", "typer"),
    "data": ("pillow", "scikit-learn"),
    "pictures": ("matplotlib",),
    "export": ("onnx", "onnxruntime", "onnxscript"),
}
_MODELS = ("torchvision", "timm")  # for torchvision:NAME and timm:NAME; in no extra
_TOOLS = {
    "chromium": (("chromium", "chromium-browser", "google-chrome"), "the report's browser tests"),
    "npm": (("npm",), "rsprune data cifar10"),
    "compiler": (("c++", "g++", "clang++"), "torch.compile; g++: winograd"),
}


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        found: its version, place or number.
        remedy: what to do if it is missing.
        needed: whether rsprune cannot work without it.
    """

    area: str
    name: str
    ok: bool
    found: str
    remedy: str = ""
    needed: bool = False


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Look at versions, devices, directories, data and tools.

    The exit code is 0 unless something that rsprune needs is broken; then it is 1.

    [bold]Examples[/bold]

      rsprune doctor

      rsprune doctor --json
    """
    checks = list(examine())
    healthy = all(check.ok for check in checks if check.needed)
    if as_json:
        found = {"ok": healthy, "checks": [asdict(check) for check in checks]}
        typer.echo(json.dumps(found, indent=2))
    else:
        console = make_console()
        console.print(_table(checks))
        console.print(_verdict(checks))
    if not healthy:
        raise typer.Exit(1)


def examine() -> Iterator[Check]:
    """Everything there is to look at, in the order it is shown."""
    yield Check("version", "python", sys.version_info >= (3, 10), platform.python_version(),
                "Use Python 3.10 or newer.", needed=True)  # fmt: skip
    yield Check("version", "rsprune", True, rsprune.__version__)
    for extra, packages in EXTRAS.items():
        remedy = f'pip install "rsprune[{extra}]"' if extra else "pip install rsprune"
        for name in packages:
            yield _package(name, remedy, needed=not extra)
    for name in _MODELS:
        found = _package(name, f"pip install {name}, if you want its models", needed=False)
        yield _imported(found) if found.ok else found
    yield from _machine()
    yield _directory("working directory", Path.cwd(), "Change to one that is yours.", needed=True)
    yield _temporary_files()
    yield _directory("data", cache_directory(), "Set RSPRUNE_DATA.", needed=False)
    yield from _data_sets()
    for name, (programs, purpose) in _TOOLS.items():
        path = next(filter(None, map(shutil.which, programs)), None)
        yield Check("tool", name, path is not None, path or "missing", f"Only for {purpose}.")


def _package(name: str, remedy: str, *, needed: bool) -> Check:
    try:
        return Check("version", name, True, version(name), remedy, needed)
    except PackageNotFoundError:
        return Check("version", name, False, "missing", remedy, needed)


def _imported(package: Check) -> Check:
    """A package that has to fit this torch: whether it really does."""
    try:
        import_module(package.name)
    except Exception as error:  # of any library
        remedy = f"Install the {package.name} that was made for torch {torch.__version__}."
        return replace(package, ok=False, found=f"does not import: {error}", remedy=remedy)
    return package


def _machine() -> Iterator[Check]:
    threads = f"{torch.get_num_threads()} of {os.cpu_count()} processors"
    yield Check("machine", "threads", True, threads)
    try:
        right = torch.ones(8, 8).mm(torch.ones(8, 8)).sum().item() == 512
        computes = "computes" if right else "computes wrongly"
    except RuntimeError as error:
        right, computes = False, str(error).splitlines()[0]
    yield Check("machine", "cpu", right, computes, "Install torch again.", needed=True)
    count = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
    kind = torch.accelerator.current_accelerator() if count else None
    yield Check("machine", "accelerators", True, f"{count} {kind.type}" if kind else "none")


def _directory(name: str, path: Path, remedy: str, *, needed: bool) -> Check:
    """Whether files can be made there, or the directory itself where it does not exist yet."""
    home = next(place for place in (path, *path.absolute().parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=home):
            return Check("writable", name, True, str(path), remedy, needed)
    except OSError as error:
        return Check("writable", name, False, f"{path}: {error.strerror}", remedy, needed)


def _temporary_files() -> Check:
    name, remedy = "temporary files", "Set TMPDIR to a directory that can be written to."
    try:
        return _directory(name, Path(tempfile.gettempdir()), remedy, needed=True)
    except OSError as error:  # there is none that can be used
        return Check("writable", name, False, str(error.strerror), remedy, needed=True)


def _data_sets() -> Iterator[Check]:
    digits = _package("scikit-learn", "", needed=False).ok
    fashion = Path(DEBIAN_DIRECTORY).is_dir()
    cifar = is_there(cache_directory())
    places = (
        ("digits", digits, "in scikit-learn", 'pip install "rsprune[data]"'),
        ("fashion-mnist", fashion, str(DEBIAN_DIRECTORY), "apt-get install dataset-fashion-mnist"),
        ("cifar10", cifar, str(cache_directory()), "rsprune data cifar10"),
    )
    for name, ok, place, remedy in places:
        yield Check("data", name, ok, place if ok else "missing", remedy)


def _table(checks: list[Check]) -> Table:
    table = Table()
    for head in ("", "", "state", "found", "remedy"):
        table.add_column(head, overflow="fold")
    area = ""
    for check in checks:
        if check.area != area:
            table.add_section()
        state = "ok" if check.ok else "BROKEN" if check.needed else "missing"
        style = None if check.ok else "bold red" if check.needed else "yellow"
        first = check.area if check.area != area else ""
        remedy = "" if check.ok else check.remedy
        table.add_row(first, check.name, state, check.found, remedy, style=style)
        area = check.area
    return table


def _verdict(checks: list[Check]) -> str:
    broken = [check.name for check in checks if check.needed and not check.ok]
    missing = [check.name for check in checks if not check.needed and not check.ok]
    if broken:
        return f"Broken: {', '.join(broken)}. rsprune does not work here until that is mended."
    if missing:
        return (
            f"rsprune works here. Missing, and only needed for some things: {', '.join(missing)}."
        )
    return "rsprune works here, with everything."
