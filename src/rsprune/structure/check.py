"""Runs a cut model without computing anything, and compares its labels with the expected ones.

Python code in a model can hold a width (``x.view(-1, 256)``, ``x[:, 4:8]``). After a cut such code
raises, or worse, runs and picks other channels. So the cut model is traced again with the labels
its parameters have kept, and after every operator the labels must be those of the full model
without the dropped ones.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from traceback import walk_tb
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_structure, tree_unflatten

from rsprune.shadow import Shadow, execute, innermost, tensors_among
from rsprune.structure.groups import ChannelGroup
from rsprune.structure.labels import Frozen, LabelStore
from rsprune.structure.layout import Block, Labels, Layout, spread
from rsprune.structure.tracer import Record, Step, TensorLabels, Tracer

_LIBRARIES = (
    os.path.dirname(torch.__file__) + os.sep,
    os.path.dirname(os.path.dirname(__file__)) + os.sep,
)


@dataclass
class Failure:
    """An operator of the cut model that did not do what it did in the full model.

    Attributes:
        record, step: which run, and which operator of it.
        name, module, line: the operator, the module and the line of source that ran it.
        message: what went wrong.
        numbers: the integers among its arguments.
        widths: full and expected size of the dimensions it should have cut.
        sites: for each full size, an output and a dimension of it where it shows.
        blamed, handled: the labels of its outputs and of its inputs, before the cut.
        entered, around: those of the module's inputs, and of all that the module does.
    """

    record: int
    step: int
    name: str
    module: str
    line: str
    message: str
    numbers: frozenset[int] = frozenset()
    widths: Mapping[int, int] = field(default_factory=dict)
    sites: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    blamed: list[Labels] = field(default_factory=list)
    handled: list[Labels] = field(default_factory=list)
    entered: list[Labels] = field(default_factory=list)
    around: list[Labels] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.name} in '{self.module}' ({self.line}): {self.message}"


NUMBER = "a number in it depends on the width"
_RESHAPES = {
    Tensor.reshape, Tensor.view, Tensor.flatten, Tensor.unflatten, Tensor.reshape_as,
    torch.reshape, torch.flatten, torch.unflatten,
}  # fmt: skip


class _Silent(LabelStore):
    """Takes no notes: everything about these labels is known."""

    def unite(self, a: Labels, b: Labels, why: Frozen) -> None:  # noqa: ARG002
        np.broadcast_shapes(a.shape, b.shape)

    def tie(self, labels: Labels, axis: int, why: Frozen) -> None:
        pass

    def freeze(self, labels: Labels, why: Frozen) -> None:
        pass

    def grid(self, labels: Labels) -> None:
        pass


class _StopError(Exception):
    """The run cannot go on after a failure."""


class Checker(Tracer):
    """Traces a cut model next to the record of the full one."""

    def __init__(
        self,
        shadow: Shadow,
        labels: TensorLabels,
        records: Iterable[Record],
        alive: Labels,
        root: Labels,
    ) -> None:
        super().__init__(shadow, labels, _Silent())
        self.records, self.alive, self.root = list(records), alive, root
        self.failures: list[Failure] = []
        self._index = 0
        self._known: dict[tuple[tuple[int, ...], int], tuple[list[int], Layout]] = {}

    def check(self) -> list[Failure]:
        """Run every recorded mode; what went wrong."""
        for index, expected in enumerate(self.records):
            self._index = index
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    self.run(training=expected.training)
            except _StopError:
                continue
            except Exception as error:
                self._raised(error)
                continue
            if len(self.record.steps) != len(expected.steps):
                self._fail("forward", "", "", "stopped early", None)
        return self.failures

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        try:
            out = execute(func, args, kwargs)
        except Exception as error:
            if self._suspended:
                raise
            return self._mend(func, args, kwargs, None, str(error))
        if self._suspended or not tensors_among((out,), {}):
            return out
        before = len(self.record.steps)
        try:
            self.observe(func, args, kwargs, out)
        except Exception as error:
            return self._mend(func, args, kwargs, out, str(error))
        message = self._difference() if len(self.record.steps) > before else ""
        if message:
            self.record.steps.pop()
            return self._mend(func, args, kwargs, out, message)
        return out

    def function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As for a tracer; a reshape that is refused before any operator runs is mended."""
        before = len(self.record.steps)
        try:
            return super().function(func, args, kwargs)
        except RuntimeError as error:
            step = self._expected()
            untouched = len(self.record.steps) == before
            if func not in _RESHAPES or not untouched or step is None or step.name != "view":
                raise
            self._fail("view", self.module, _line(sys._getframe()), str(error), (args, kwargs))
            return self._made(step)[0]

    def whole(self, rule: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As for a tracer."""
        out = super().whole(rule, func, args, kwargs)
        message = self._difference()
        if message:
            self._fail(func.__name__, self.module, _line(sys._getframe()), message, (args, kwargs))
            raise _StopError
        return out

    def _expected(self) -> Step | None:
        steps = self.records[self._index].steps
        at = len(self.record.steps)
        return steps[at] if at < len(steps) else None

    def _difference(self) -> str:
        """How the last operator differs from what it should have done; nothing if it does not."""
        steps, at = self.records[self._index].steps, len(self.record.steps) - 1
        if at >= len(steps):
            return "the model went another way"
        expected, actual = steps[at], self.record.steps[at]
        if expected.name != actual.name or len(expected.shapes) != len(actual.shapes):
            return f"the model went another way: {expected.name} was expected"
        if expected.numbers != actual.numbers and not self.shadow.real:  # there, values make them
            return NUMBER
        for shape, layout, got_shape, got in zip(
            expected.shapes, expected.layouts, actual.shapes, actual.layouts, strict=True
        ):
            want_shape, want = self._surviving(shape, layout)
            for d, size in enumerate(want_shape):
                if d >= len(got_shape) or (got_shape[d] != size and d not in layout.free):
                    return f"its output is {list(got_shape)}, not {want_shape}"
            if not _same(want, got, want_shape, self.root):
                return "its output holds other channels than before"
        return ""

    def _surviving(self, shape: tuple[int, ...], layout: Layout) -> tuple[list[int], Layout]:
        """See ``surviving``; remembered, since many steps have the same layout."""
        key = (shape, id(layout))
        if key not in self._known:
            self._known[key] = surviving(shape, layout, self.alive)
        return self._known[key]

    def _mend(self, func: Any, args: Any, kwargs: Any, out: Any, message: str) -> Any:
        """Note a failure, and go on with the output that was expected."""
        name = func._schema.name.partition("::")[2]
        name = "view" if name == "_unsafe_view" else name
        self._fail(name, self.module, _line(sys._getframe()), message, (args, kwargs))
        expected = self._expected()
        if expected is None or expected.name != name or name.endswith("_"):
            raise _StopError
        made = self._made(expected)
        if out is not None:
            return tree_unflatten(made, tree_structure(out))
        returns = func._schema.returns
        if len(returns) == 1 and not str(returns[0].type).startswith("List"):
            return made[0]
        return made if len(returns) == 1 else tuple(made)

    def _made(self, step: Step) -> list[Tensor]:
        """The outputs that a step should have had."""
        made = []
        device = "cpu" if self.shadow.real else "meta"
        self._suspended = True  # these are not the model's operators
        for shape, layout, dtype in zip(step.shapes, step.layouts, step.dtypes, strict=True):
            new_shape, new_layout = self._surviving(shape, layout)
            made.append(torch.zeros(new_shape, dtype=dtype, device=device))
            self.write(made[-1], new_layout)
        self._suspended = False
        self.record.steps.append(step)
        return made

    def _fail(self, name: str, module: str, line: str, message: str, inputs: Any) -> None:
        expected = self._expected()
        failure = Failure(self._index, len(self.record.steps), name, module, line, message)
        leaves = tree_leaves(inputs)
        failure.numbers = frozenset(x for x in leaves if type(x) is int)
        widths: dict[int, set[int]] = {}
        if expected is not None:
            failure.handled = [b.labels for layout in expected.inputs for b in layout.blocks]
            sites: dict[int, tuple[int, int]] = {}
            for k, (shape, layout) in enumerate(
                zip(expected.shapes, expected.layouts, strict=True)
            ):
                new, _ = self._surviving(shape, layout)
                failure.blamed.extend(block.labels for block in layout.blocks)
                for d, (full, cut) in enumerate(zip(shape, new, strict=True)):
                    if full != cut:
                        widths.setdefault(full, set()).add(cut)
                        sites.setdefault(full, (k, d))
            failure.widths = {full: cut.pop() for full, cut in widths.items() if len(cut) == 1}
            failure.sites = sites
        steps = [step for step in self.records[self._index].steps if step.module == module]
        layouts = [layout for step in steps for layout in (*step.inputs, *step.layouts)]
        failure.around = [block.labels for layout in layouts for block in layout.blocks]
        owner = module
        while True:
            entry = self.records[self._index].entered.get(owner, ())
            failure.entered.extend(block.labels for layout in entry for block in layout.blocks)
            if not owner:
                break
            owner = owner.rpartition(".")[0]
        self.failures.append(failure)

    def _raised(self, error: Exception) -> None:
        """Python code refused: blame the module whose code it is."""
        line = ""
        for frame, number in walk_tb(error.__traceback__):
            if not frame.f_code.co_filename.startswith(_LIBRARIES):
                line = f"{frame.f_code.co_filename}:{number}"
        message = f"{type(error).__name__}: {error}"
        self._fail("forward", innermost(error)[0], line, message, None)


def _line(frame: FrameType | None) -> str:
    """The innermost line of source that is the model's own."""
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else ""


def surviving(shape: tuple[int, ...], layout: Layout, alive: Labels) -> tuple[list[int], Layout]:
    """The shape and layout of a tensor without the dropped units."""
    sizes = list(shape)
    blocks = []
    for block in layout.blocks:
        mask = alive[block.labels]
        axes = range(mask.ndim)
        kept = [np.flatnonzero(mask.any(axis=tuple(a for a in axes if a != axis))) for axis in axes]
        blocks.append(block._replace(labels=block.labels[np.ix_(*kept)]))
        for d, index in zip(block.dims, kept, strict=True):
            sizes[d] = len(index)
    return sizes, layout._replace(blocks=tuple(blocks))


def _same(want: Layout, got: Layout, shape: list[int], root: Labels) -> bool:
    """Whether a tensor holds the labels it should."""
    for block in want.blocks:
        own = [b for b in got.blocks if set(b.dims) & set(block.dims)]
        if len(own) == 1 and own[0].dims == block.dims and _equal(block, own[0], shape):
            continue
        unit = np.unique(root[block.labels])
        if len(unit) == 1:
            # One unit is left: it may lose its labels, since dimensions of size 1 carry none, or
            # have those of another place.
            if any((root[b.labels] != unit[0]).any() for b in own):
                return False
        elif len(own) != 1 or not _equal(block, own[0], shape):
            return False
    known = {d for block in want.blocks for d in block.dims}
    return all(set(b.dims) & known or not b.labels.any() for b in got.blocks)


def _equal(a: Block, b: Block, shape: list[int]) -> bool:
    dims = sorted({*a.dims, *b.dims})
    try:
        return np.array_equal(spread(a, dims, shape), spread(b, dims, shape))
    except ValueError:  # of other sizes
        return False


def explicable(failures: Sequence[Failure]) -> bool:
    """Whether a cut that leaves one unit could fail like this and still compute the same."""
    return all(failure.message != NUMBER for failure in failures)


def suspects(failure: Failure, root: Labels, groups: Sequence[ChannelGroup]) -> list[ChannelGroup]:
    """Those of ``groups`` that a failure is most likely about; all of them if it does not say."""
    owners = {r: i for i, group in enumerate(groups) for r in group.roots.tolist()}
    nearest = (failure.handled[:1], failure.blamed, failure.handled, failure.entered)
    # a number is made of a width, but where? somewhere in the module
    for arrays in (*(nearest if failure.message != NUMBER else ()), failure.around):
        roots = {r for own in arrays for r in np.unique(root[own]).tolist()}
        found = {owners[r] for r in roots if r in owners}
        if found:
            return [groups[i] for i in sorted(found)]
    return list(groups)
