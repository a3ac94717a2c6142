"""``rsprune recipe``: every setting of a run, with its default and meaning, ready to edit."""

from __future__ import annotations

import json
from typing import Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
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
        lines.append(_line(name, field.default, _meaning(field)))
    return "\n".join(lines)


def _meaning(field: FieldInfo) -> str:
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    return f"{field.description}{': ' * bool(choices)}{', '.join(choices)}"


def _line(name: str, default: Any, meaning: str) -> str:
    if default is None or default is PydanticUndefined:
        return f"# {name} =   # {meaning}"
    value = json.dumps(default)  # which is TOML too, for values that are not tables
    return f"{name} = {value}  # {meaning}"
