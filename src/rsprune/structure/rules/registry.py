"""How a rule is written, registered and found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rsprune.structure.labels import Frozen, LabelStore
from rsprune.structure.layout import Block, Labels, Layout


@dataclass
class Call:
    """One call of an operator, as a rule sees it.

    A rule reads the layouts of the inputs, says what must be united or frozen, and sets the layouts
    of the outputs.
    """

    store: LabelStore
    name: str
    args: Sequence[Any]
    kwargs: dict[str, Any]
    out: Any
    module: str
    read: Callable[[Tensor], Layout]
    write: Callable[[Tensor, Layout], None]
    statistics: Callable[[Block], None]
    owe: Callable[[Tensor, Labels, Frozen], None]

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument given by position or by name."""
        if position < len(self.args):
            return self.args[position]
        return self.kwargs.get(name, default)

    def why(self, reason: str) -> Frozen:
        """A reason, with the operator and the module."""
        return Frozen(self.name, self.module, reason)

    def unite(self, a: Labels, b: Labels) -> None:
        """See LabelStore.unite."""
        self.store.unite(a, b, self.why("meets a dimension of fixed size"))

    def tie(self, labels: Labels, axis: int) -> None:
        """See LabelStore.tie."""
        self.store.tie(labels, axis, self.why("needs the dimension whole"))

    def freeze(self, blocks: Block | Layout | None, reason: str) -> None:
        """Freeze the labels of a block or of all blocks."""
        if isinstance(blocks, Block):
            self.store.freeze(blocks.labels, self.why(reason))
        elif blocks is not None:
            for block in blocks.blocks:
                self.freeze(block, reason)

    def freeze_if_used(self, output: Tensor, block: Block, reason: str) -> None:
        """Freeze a block as soon as somebody looks at ``output``."""
        self.owe(output, block.labels, self.why(reason))


Rule = Callable[[Call], None]
_RULES: dict[str, Rule] = {}
FUNCTIONS: dict[Any, Rule] = {}  # functions of torch that are recognised whole


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for operators, named as in aten without overload or in-place underscore."""

    def register(function: Rule) -> Rule:
        for name in names:
            _RULES[name] = function
        return function

    return register


def find_rule(func: Any) -> tuple[str, Rule | None]:
    """The name of an operator and its rule; None where it is unknown."""
    namespace, _, name = func._schema.name.partition("::")
    if namespace not in ("aten", "prims"):
        return func._schema.name, None
    base = name[:-1] if name.endswith("_") and not name.endswith("__") else name
    found = _RULES.get(base)
    if found is None and torch.Tag.pointwise in func.tags:
        found = _RULES["pointwise"]
    return name, found
