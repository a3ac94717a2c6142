"""What an exported file says about itself."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version

from torch import nn

from rsprune.errors import InvalidParameterError, TraceError
from rsprune.metrics.macs import profile
from rsprune.runtimes.batches import Inputs
from rsprune.shadow import as_inputs


def describe(model: nn.Module, inputs: Inputs, given: Mapping[str, str] | None) -> dict[str, str]:
    """The version of rsprune, the model's class and cost for one input, and what was given."""
    texts = {"rsprune": version("rsprune"), "model": type(model).__qualname__}
    with suppress(TraceError):  # code that cannot be counted can still be exported
        cost = profile(model, as_inputs(inputs.of(1)))
        counts = {"macs": cost.macs, "weights": cost.weights, "params": cost.params}
        texts |= {name: str(count) for name, count in counts.items()}
    for name, text in (given or {}).items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise InvalidParameterError(
                "export", "metadata", "texts by name", {name: text},
                "Turn the value into text with json.dumps.",
            )  # fmt: skip
        texts[name] = text
    return texts
