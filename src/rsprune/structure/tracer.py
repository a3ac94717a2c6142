"""Runs a model once without computing anything, and carries labels through its operators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.overrides import TorchFunctionMode

from rsprune.shadow import Observer, Shadow, storage_of, tensors_among
from rsprune.structure.attributes import watch_widths
from rsprune.structure.labels import Frozen, LabelStore
from rsprune.structure.layout import NOTHING, Block, Labels, Layout
from rsprune.structure.rules import FUNCTIONS, Call, find_rule

_LAYOUT = "_rsprune_layout"
_DEBTS = "_rsprune_debts"
_FLOW = "_rsprune_flow"
_SOURCE = "_rsprune_source"
_NAME = "_rsprune_name"
_SUMS = {
    "addmm", "baddbmm", "bmm", "cumsum", "dot", "linalg_vector_norm", "logsumexp", "mean", "mm",
    "mv", "prod", "sum",
}  # fmt: skip
# operators that are given sizes, numbers of groups and places rather than numbers to compute with
_SIZED = {
    "_reshape_alias", "_unsafe_view", "arange", "as_strided", "bernoulli", "channel_shuffle",
    "constant_pad_nd", "convolution", "empty", "empty_strided", "expand", "eye", "flatten",
    "index", "linspace", "narrow", "native_channel_shuffle", "native_group_norm",
    "native_layer_norm", "new_empty", "new_empty_strided", "new_ones", "new_zeros", "normal",
    "ones", "permute", "pixel_shuffle", "pixel_unshuffle", "rand", "randn", "randperm", "repeat",
    "reshape", "roll", "select", "slice", "split", "split_with_sizes", "squeeze", "transpose",
    "unbind", "unflatten", "uniform", "unsqueeze", "view", "zeros",
}  # fmt: skip
# whether torch copies depends on strides, which change with widths
_COPIES = {"clone", "alias", "detach", "contiguous"}
_READS_VALUES = {"aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::allclose"}
_LEAVES_TORCH = {Tensor.numpy, Tensor.tolist, Tensor.item, Tensor.__array__, Tensor.__dlpack__}

# Functions that do the same for any number of channels. Code that calls nothing else, and so never
# asks for a size or gives one, cannot hold a width.
_CONVOLUTIONS = {F.conv1d, F.conv2d, F.conv3d, F.conv_transpose2d, torch.conv2d}
_ARITHMETIC = {
    torch.add, torch.mul, Tensor.add, Tensor.add_, Tensor.mul, Tensor.__add__, Tensor.__iadd__,
    Tensor.__mul__, Tensor.__radd__, Tensor.__rmul__,
}  # fmt: skip
_AGNOSTIC = _CONVOLUTIONS | _ARITHMETIC | {
    F.batch_norm, F.linear, F.relu, F.relu6, F.hardswish, F.hardsigmoid, F.silu, F.gelu, F.elu,
    F.leaky_relu, F.hardtanh, F.dropout, F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d,
    F.max_pool2d_with_indices, torch.relu, torch.relu_, torch.sigmoid, torch.cat, torch.flatten,
    torch.tanh, torch.mean, torch.concat, Tensor.flatten, Tensor.mean, Tensor.relu, Tensor.relu_,
    Tensor.sigmoid, Tensor.tanh, Tensor.dim, torch._C._set_grad_enabled,
}  # fmt: skip

TensorLabels = dict[str, dict[int, Labels]]  # for every parameter and buffer, labels by dimension


def label_tensors(store: LabelStore, shadow: Shadow) -> TensorLabels:
    """Fresh labels for every dimension that could be cut: no kernel's, and none of size 1."""
    kernels = {
        id(tensor)
        for module in shadow.model.modules()
        if isinstance(module, _ConvNd)
        for tensor in module.parameters()  # its parametrizations' included
    }
    found: TensorLabels = {}
    for name, tensor in shadow.tensors.items():
        count = min(2, tensor.dim()) if id(tensor) in kernels else tensor.dim()
        dims = range(count if tensor.is_floating_point() else 0)
        found[name] = {d: store.fresh(tensor.shape[d]) for d in dims if tensor.shape[d] > 1}
    return found


class Flow(NamedTuple):
    """Where the inputs of an operator come from.

    ``steps`` are those that made them, -1 for the model's inputs; ``tensors`` are the parameters
    and buffers, also those that were reshaped on the way.
    """

    steps: frozenset[int] = frozenset()
    tensors: frozenset[str] = frozenset()


class Step(NamedTuple):
    """One operator as it ran: its outputs' shapes, layouts and dtypes."""

    name: str
    module: str
    shapes: tuple[tuple[int, ...], ...]
    layouts: tuple[Layout, ...]
    dtypes: tuple[torch.dtype, ...]
    numbers: tuple[float, ...]  # the numbers among the operands of an operator that computes
    inputs: tuple[Layout, ...]
    flow: Flow


class Listing:
    """The operators of a run in order, to compare it with another."""

    def __init__(self) -> None:
        self.entries: list[tuple[Any, ...]] = []
        self._seen: dict[tuple[Any, ...], int] = {}

    def add(self, func: Any, args: Any, outputs: list[Tensor], module: str) -> None:
        """List an operator, unless it moves a counter, as only training does."""
        if outputs[0].is_floating_point():
            named = [getattr(t, _NAME, None) for t in tensors_among(args, {})]
            entry = (func, module, *named)
            self.entries.append(entry)
            self._seen[entry] = self._seen.get(entry, 0) + 1
            for tensor in outputs:
                setattr(tensor, _SOURCE, (entry, self._seen[entry]))

    @staticmethod
    def sources(outputs: Any) -> list[Any]:
        """Which operators made the outputs of a run."""
        return [getattr(tensor, _SOURCE, None) for tensor in tensors_in(outputs)]


@dataclass(eq=False)
class Record:
    """One run of a model."""

    training: bool
    steps: list[Step] = field(default_factory=list)
    entered: dict[str, tuple[Layout, ...]] = field(default_factory=dict)  # by module, its inputs
    agnostic: bool = True  # no code looked at a size or gave one
    listing: Listing = field(default_factory=Listing)
    sources: list[Any] = field(default_factory=list)  # which operators made the outputs


class Lister(Observer):
    """Lists the operators that a shadow runs, without carrying labels."""

    def __init__(self, shadow: Shadow) -> None:
        super().__init__()
        self.shadow = shadow
        self.listing = Listing()

    def observe(self, func: Any, args: Any, _kwargs: Any, out: Any) -> None:
        """List the operator."""
        outputs = tensors_among((out,), {})
        if outputs:
            self.listing.add(func, args, outputs, self.shadow.running)


class Tracer(Observer):
    """Carries labels through the operators that a shadow runs."""

    def __init__(self, shadow: Shadow, labels: TensorLabels, store: LabelStore) -> None:
        super().__init__()
        self.shadow, self.store = shadow, store
        self.statistics: list[tuple[str, Labels]] = []
        self.record = Record(training=False)
        self._suspended = False
        self._rewritten: dict[int, Tensor] = {}
        for name, tensor in shadow.tensors.items():
            blocks = tuple(Block((d,), own, zero=True) for d, own in labels[name].items())
            self.write(tensor, Layout(blocks))
            setattr(tensor, _FLOW, Flow(tensors=frozenset([name])))
            setattr(tensor, _NAME, name)
        self._modules = dict(shadow.model.named_modules())
        watch_widths(shadow.model, self._looked_at_a_width)
        for name, module in self._modules.items():
            module.register_forward_pre_hook(self._enter(name), with_kwargs=True)

    def _looked_at_a_width(self) -> None:
        self.record.agnostic = False

    def _enter(self, name: str) -> Any:
        def hook(_: nn.Module, args: Any, kwargs: Any) -> None:
            self.record.entered[name] = tuple(self.read(t) for t in tensors_in((args, kwargs)))

        return hook

    def run(self, *, training: bool) -> Any:
        """Run the shadow once."""
        self.record = Record(training)
        self._rewritten.clear()
        for tensor in tensors_in(self.shadow.arguments):
            setattr(tensor, _FLOW, Flow(frozenset([-1])))
        with _WholeFunctions(self):
            outputs = self.shadow.run(self, training=training)
        self.record.sources = Listing.sources(outputs)
        return outputs

    @property
    def module(self) -> str:
        """The name of the module that is running."""
        return self.shadow.running

    def read(self, tensor: Tensor) -> Layout:
        """The layout of a tensor."""
        for labels, why in vars(tensor).pop(_DEBTS, ()):
            self.store.freeze(labels, why)
        layout: Layout = getattr(tensor, _LAYOUT, NOTHING)
        if self._rewritten and layout is not NOTHING:
            owner = self._rewritten.get(storage_of(tensor), tensor)
            if owner is not tensor:  # another view of the same memory was written to
                return Layout(layout.blocks).with_zero(False)
        return layout

    @staticmethod
    def write(tensor: Tensor, layout: Layout) -> None:
        """Set the layout of a tensor."""
        setattr(tensor, _LAYOUT, layout)

    def observe(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Apply the operator's rule."""
        if self._suspended:
            return
        outputs = tensors_among((out,), {})
        leaves = not outputs and func._schema.name in _READS_VALUES
        if leaves or isinstance(kwargs.get("out"), Tensor):
            reason = "its values leave torch" if leaves else "writes into a tensor it is given"
            for tensor in tensors_among(args, kwargs):
                self._freeze(self.read(tensor).blocks, func._schema.name, reason)
        if not outputs:
            return
        self.record.listing.add(func, args, outputs, self.module)
        name, rule = find_rule(func)
        target = args[0] if name.endswith("_") and args and isinstance(args[0], Tensor) else None
        before = None if target is None else self.read(target)
        given = tensors_among(args, kwargs)
        inputs = tuple(self.read(tensor) for tensor in given)
        self._apply(name, rule, args, kwargs, out, outputs)
        if target is not None and before is not None:
            self._wrote(name, target, before)
        numbers = _numbers(name, args, kwargs, tensors=not self.shadow.real)
        if name in _SUMS:
            pairs = zip(given, inputs, strict=True)  # a sum over equal entries knows how many
            numbers += tuple(t.shape[d] for t, own in pairs for d in sorted(own.free))
        self._log(name, outputs, inputs, _joined(given), numbers)

    def _apply(
        self, name: str, rule: Any, args: Any, kwargs: Any, out: Any, outputs: list[Tensor]
    ) -> None:
        call = Call(
            self.store,
            name,
            args,
            kwargs,
            out,
            self.module,
            self.read,
            self.write,
            self._note_statistics,
            self._owe,
        )
        if rule is not None:
            rule(call)
            return
        for tensor in tensors_among(args, kwargs):
            call.freeze(self.read(tensor), "no rule says what it does to channels")
        for tensor in outputs:
            self.write(tensor, NOTHING)

    def _freeze(self, blocks: Iterable[Block], operator: str, reason: str) -> None:
        for block in blocks:
            self.store.freeze(block.labels, Frozen(operator, self.module, reason))

    def _note_statistics(self, block: Block) -> None:
        self.statistics.append((self.module, block.labels))

    @staticmethod
    def _owe(output: Tensor, labels: Labels, why: Frozen) -> None:
        setattr(output, _DEBTS, [*getattr(output, _DEBTS, ()), (labels, why)])

    def _wrote(self, name: str, target: Tensor, before: Layout) -> None:
        """An operator wrote into ``target``: what else looks at that memory must know."""
        after: Layout = getattr(target, _LAYOUT, NOTHING)
        if after is before:
            return
        added = [b for b in after.blocks if before.at(b.dims[0]) is None]
        whole = target.numel() * target.element_size() == target.untyped_storage().nbytes()
        if added and not whole:
            self._freeze(added, name, "writes into a part of another tensor")
        pairs = [(b, after.at(b.dims[0])) for b in before.blocks]
        lost = any(old.zero and new is not None and not new.zero for old, new in pairs)
        if added or lost or before.free != after.free:
            self._rewritten[storage_of(target)] = target

    def _log(
        self,
        name: str,
        outputs: list[Tensor],
        inputs: tuple[Layout, ...],
        flow: Flow,
        numbers: tuple[float, ...] = (),
    ) -> None:
        steps = self.record.steps
        made = Flow(frozenset([len(steps)])) if flow.steps and name not in _COPIES else flow
        for tensor in outputs:
            setattr(tensor, _FLOW, made)
        if name not in _COPIES:
            steps.append(
                Step(
                    "view" if name == "_unsafe_view" else name,
                    self.module,
                    tuple(tuple(t.shape) for t in outputs),
                    tuple(getattr(t, _LAYOUT, NOTHING) for t in outputs),
                    tuple(t.dtype for t in outputs),
                    numbers,
                    inputs,
                    flow,
                )
            )

    def function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function of torch; most fall apart into operators."""
        self.record.agnostic &= func in _AGNOSTIC and self._has_no_width(func, args)
        if func in _LEAVES_TORCH and isinstance(args[0], Tensor):
            self._freeze(self.read(args[0]).blocks, func.__name__, "its values leave torch")
        rule = FUNCTIONS.get(func)
        return func(*args, **kwargs) if rule is None else self.whole(rule, func, args, kwargs)

    def _has_no_width(self, func: Any, args: tuple[Any, ...]) -> bool:
        """Whether the numbers that a function is given cannot be made of a width."""
        if func in _CONVOLUTIONS:  # torch's own modules hold the number of groups, and are updated
            return type(self._modules.get(self.module)).__module__.startswith("torch.nn.")
        return func not in _ARITHMETIC or all(isinstance(a, Tensor) for a in args)

    def whole(self, rule: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function that is recognised whole, without looking at its operators."""
        given = tensors_among(args, kwargs)
        inputs, flow = tuple(self.read(tensor) for tensor in given), _joined(given)
        self._suspended = True
        try:
            out = func(*args, **kwargs)
        finally:
            self._suspended = False
        self._apply(func.__name__, rule, args, kwargs, out, [out])
        self._log(func.__name__, [out], inputs, flow)
        return out


class _WholeFunctions(TorchFunctionMode):
    """Catches the functions that have a rule of their own before they fall apart into operators."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return self.tracer.function(func, args, kwargs or {})


def is_given(tensor: Tensor) -> bool:
    """Whether a tensor is an input or a parameter rather than made by an operator."""
    return hasattr(tensor, _FLOW)


def _joined(tensors: list[Tensor]) -> Flow:
    flows: list[Flow] = [getattr(tensor, _FLOW, Flow()) for tensor in tensors]
    if len(flows) == 1:
        return flows[0]
    return Flow(
        frozenset().union(*(flow.steps for flow in flows)),
        frozenset().union(*(flow.tensors for flow in flows)),
    )


def _numbers(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], *, tensors: bool
) -> tuple[float, ...]:
    """The numbers an operator computes with: they must not depend on a width.

    Small constant tensors count too, unless ``tensors`` is false; sizes and counters do not.
    """
    if name.rstrip("_") in _SIZED:
        return ()
    if name.rstrip("_") in ("full", "new_full", "full_like", "fill"):
        args = [args[2] if name == "new_full" else args[1]]
    found: list[float] = []
    for value in (*args, *kwargs.values()):
        entries = value if isinstance(value, list | tuple) else (value,)
        for entry in entries:
            if isinstance(entry, int | float):
                found.append(entry)
            elif tensors and isinstance(entry, Tensor) and _is_small_constant(entry):
                found.extend(entry.flatten().tolist())
    return tuple(found)


def _is_small_constant(tensor: Tensor) -> bool:
    return not tensor.is_meta and tensor.is_floating_point() and tensor.numel() <= 64


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in nested tuples, lists, mappings and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from tensors_in(entry)
    elif isinstance(value, list | tuple | set):
        for entry in value:
            yield from tensors_in(entry)
    elif is_dataclass(value) and not isinstance(value, type):
        for item in fields(value):
            yield from tensors_in(getattr(value, item.name))
    elif hasattr(value, "__dict__") and not isinstance(value, nn.Module):
        for entry in vars(value).values():
            yield from tensors_in(entry)
