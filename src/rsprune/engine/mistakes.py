"""The mistakes of a recipe, in words: each one line with the place, the range and a remedy."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any, get_args

from pydantic.fields import FieldInfo

from rsprune.checks import did_you_mean
from rsprune.errors import InvalidParameterError

_KINDS = {  # that pydantic calls valid
    "boolean": "true or false",
    "dictionary": "a table",
    "integer": "a whole number",
    "number": "a number",
    "string": "text in quotes",
    "tuple": "a list",
}


def problem(
    file: str, options: Mapping[str, str], found: Any, keys: Mapping[str, FieldInfo]
) -> str:
    """One mistake that pydantic found.

    Args:
        file: the recipe, as it is called in messages.
        options: for every key that came from the command line, the option as it was typed.
        found: pydantic's account of the mistake.
        keys: every key of a recipe.
    """
    path = [str(part) for part in found["loc"]]
    key = ".".join(path)
    if found["type"] == "extra_forbidden" and isinstance(found["input"], dict):
        tables = {known.partition(".")[0] for known in keys if "." in known}
        return f"{file}: [{key}]: unknown table. {suggestion(key, tables)}".rstrip()
    if found["type"] == "extra_forbidden":
        return f"{file}: {key}: unknown key. {suggestion(key, keys)}".rstrip()
    if not key:
        return f"{file}: {_text(found)}"
    if key not in keys and ".".join(path[:-1]) in keys:  # an item of a list
        key = ".".join(path[:-1])
    where = options.get(key, f"{file}: {key}")
    wanted, remedy = _wanted(found, key, keys.get(key))
    return f"{where}: must be {wanted}. Got {found['input']!r}. {remedy}".rstrip()


def no_value(option: str, key: str, field: FieldInfo | None) -> str:
    """An option without its value."""
    meaning = _meaning(key, field) if field else ""
    return f"{option}: has no value; write {option} VALUE. {meaning}".rstrip()


def suggestion(key: str, known: Iterable[str], prefix: str = "") -> str:
    """The keys that may have been meant, as a question; nothing if none is near."""
    last = {name: name.rpartition(".")[2] for name in known}
    own = key.rpartition(".")[2]
    near = difflib.get_close_matches(own, set(last.values()), n=1)
    alike = [name for name in last if last[name] in near]
    whole = alike if own in near else last  # that name, in another table, rather than another name
    guesses = difflib.get_close_matches(key, whole, n=1, cutoff=0.7) or alike
    return f"Did you mean {' or '.join(prefix + guess for guess in guesses)}?" if guesses else ""


def _wanted(found: Any, key: str, field: FieldInfo | None) -> tuple[str, str]:
    """What is allowed, and a remedy."""
    error = found.get("ctx", {}).get("error")
    if isinstance(error, InvalidParameterError):
        return error.allowed, error.remedy
    remedy = did_you_mean(found["input"], _choices(field)) if field else ""
    meaning = _meaning(key, field) if field else ""
    return _text(found), f"{remedy} {meaning}".strip()


def _choices(field: FieldInfo) -> tuple[Any, ...]:
    return tuple(choice for choice in get_args(field.annotation) if isinstance(choice, str))


def _meaning(key: str, field: FieldInfo) -> str:
    default = "none" if field.default is None else json.dumps(field.default)
    return f"{key}: {field.description}; default {default}."


def _text(found: Any) -> str:
    """What is wanted, in pydantic's words where they are not for programmers."""
    text: str = found["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    kind = text.removeprefix("a valid ").partition(" ")[0].strip(",")
    return _KINDS.get(kind, text)
