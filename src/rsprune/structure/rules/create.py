"""Operators that make tensors out of nothing, or out of another's shape."""

from __future__ import annotations

from torch import Tensor

from rsprune.structure.layout import Layout
from rsprune.structure.rules.registry import Call, rule


@rule(
    "empty", "zeros", "ones", "full", "new_empty", "new_zeros", "new_ones", "new_full", "rand",
    "randn", "empty_strided", "new_empty_strided", "scalar_tensor",
)  # fmt: skip
def uniform(call: Call) -> None:
    """All indices alike: fits whatever it meets."""
    call.write(call.out, Layout(free=frozenset(range(call.out.dim()))))


@rule("arange", "linspace", "randperm", "randint", "tril_indices", "triu_indices", "eye", "tensor")
def table(call: Call) -> None:
    """Values that depend on the index: nothing along them may be dropped."""
    call.write(call.out, Layout())


@rule("zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like")
def alike(call: Call) -> None:
    """The shape of another tensor, and so its labels."""
    layout = call.read(call.args[0])
    call.write(call.out, layout.with_zero(call.name == "zeros_like"))


@rule("fill", "zero", "uniform", "normal", "exponential", "random", "bernoulli", "trunc_normal")
def filled(call: Call) -> None:
    """Written over with a constant or with noise."""
    source = call.args[0]
    if not isinstance(source, Tensor):
        return
    layout = call.read(source)
    call.write(call.out, layout if call.name.startswith("zero") else layout.with_zero(False))
