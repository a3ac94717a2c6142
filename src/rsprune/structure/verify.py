"""``rsprune.verify``: the pruned model computes what the zeroed full model computes."""

from __future__ import annotations

from typing import Any

from torch import nn

from rsprune.errors import InvalidParameterError, TraceError, VerificationError
from rsprune.shadow import bind, check_devices, check_model, explain
from rsprune.structure.groups import ChannelGraph
from rsprune.structure.numbers import difference, in_double, outputs, set_to_zero
from rsprune.structure.prune import Drop, alive_labels, check_graph, checked_drop


def verify(
    model: nn.Module,
    slim: nn.Module,
    graph: ChannelGraph,
    drop: Drop,
    example_inputs: Any,
    *,
    tolerance: float = 1e-5,
) -> float:
    """Compare ``slim`` with ``model`` after the dropped units were set to zero there.

    Both run in evaluation mode and double precision, as copies. Normalisation whose statistics run
    over channels (``graph.statistics``) gives other values with fewer channels, by nature; for the
    comparison it only scales and shifts, in both models, so that everything else is still checked.

    Returns:
        The largest difference of the outputs, relative to the largest output.

    Raises:
        VerificationError: if it is larger than ``tolerance``.
    """
    check_model("verify", model)
    check_model("verify", slim)
    check_graph("verify", model, graph)
    if not isinstance(tolerance, int | float) or not tolerance > 0:
        raise InvalidParameterError(
            "verify", "tolerance", "a positive number", tolerance, "Try 1e-8."
        )
    units = checked_drop("verify", graph, drop)
    arguments = bind("verify", model, example_inputs)
    check_devices("verify", model, arguments)
    full, small = (in_double(m) for m in (model, slim))
    set_to_zero(full, graph.labels, alive_labels(graph, units))
    try:
        expected, actual = (outputs(m, arguments) for m in (full, small))
    except Exception as error:
        raise TraceError(explain(error, model, arguments)) from error
    apart = difference(expected, actual)
    if not apart <= tolerance:
        raise VerificationError(
            f"The pruned model differs from the full one with zeros by {apart:.1e} of its "
            f"largest output; {tolerance:.0e} is allowed. Is it the model that "
            f"rsprune.prune(model, graph, drop) made, with the same graph and drop?"
        )
    return apart
