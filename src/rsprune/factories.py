"""Finds ``package.module:factory``, the user's own models and data."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from operator import attrgetter
from typing import Any

from rsprune.checks import did_you_mean
from rsprune.errors import InvalidParameterError


def find_factory(owner: str, name: str) -> Callable[..., Any]:
    """What ``name`` stands for.

    Args:
        owner: the function whose parameter ``name`` it is.
        name: ``package.module:factory``; the factory may be dotted.
    """
    module, _, path = name.partition(":")
    try:
        home = importlib.import_module(module)
    except Exception as error:
        raise InvalidParameterError(
            owner, "name", "package.module:factory with a module that imports", name,
            f"Importing '{module}' raised {type(error).__name__}: {error}",
        ) from error  # fmt: skip
    try:
        factory = attrgetter(path)(home)
    except AttributeError as error:
        known = [own for own, value in vars(home).items() if callable(value)]
        remedy = f"{error}. {did_you_mean(path, known)}".rstrip()
        raise InvalidParameterError(owner, "name", f"a factory in {module}", name, remedy) from None
    if not callable(factory):
        raise InvalidParameterError(
            owner, "name", "package.module:factory with a factory that can be called", name,
            "Name a function or a class.",
        )  # fmt: skip
    found: Callable[..., Any] = factory
    return found
