"""``rsprune recipe``: every setting of a run, with its default and meaning, ready to edit."""

from __future__ import annotations

from typing import Any

import tomli_w
import typer
from pydantic_core import PydanticUndefined

from rsprune.engine.recipe import recipe_keys


def recipe() -> None:
    """Print a recipe with every key, its default and its meaning.

    [bold]Example[/bold]

      rsprune recipe > mine.toml && rsprune compress mine.toml
    """
    typer.echo(template())


def template() -> str:
    """The commented TOML of a recipe."""
    lines: list[str] = []
    section = ""
    for key, field in recipe_keys():
        table, _, name = key.rpartition(".")
        if table != section:
            lines += ["", f"[{table}]"]
            section = table
        lines.append(_line(name, field.default, field.description or ""))
    return "\n".join(lines)


def _line(name: str, default: Any, meaning: str) -> str:
    if default is None or default is PydanticUndefined:
        return f"# {name} =   # {meaning}"
    setting = tomli_w.dumps({"x": list(default) if isinstance(default, tuple) else default})
    value = " ".join(setting.removeprefix("x = ").split())
    if isinstance(default, dict):
        value = "{}"
    return f"{name} = {value}  # {meaning}"
