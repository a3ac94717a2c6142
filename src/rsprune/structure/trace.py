"""``rsprune.trace``: which channels of a model live and die together."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from rsprune.errors import RsPruneWarning, TraceError
from rsprune.shadow import (
    Arguments,
    Shadow,
    bind,
    check_devices,
    check_model,
    explain,
    named_tensors,
)
from rsprune.structure.check import NUMBER
from rsprune.structure.cut import Traced
from rsprune.structure.groups import ChannelGraph
from rsprune.structure.labels import Frozen, LabelStore
from rsprune.structure.layout import Labels
from rsprune.structure.settle import Settled, settle
from rsprune.structure.tracer import (
    Lister,
    Listing,
    Record,
    TensorLabels,
    Tracer,
    is_given,
    label_tensors,
    tensors_in,
)


def trace(model: nn.Module, example_inputs: Any) -> ChannelGraph:
    """Find the channels of ``model`` that live and die together.

    The model's code runs, in training and in evaluation mode, but nothing is computed; the model is
    left as it was.

    Args:
        model: any module of plain Python.
        example_inputs: one batch: a tensor; a tuple of positional arguments; a dict of keyword
            arguments if its keys are parameters of ``forward``, and else the one argument.
    """
    check_model("trace", model)
    arguments = bind("trace", model, example_inputs)
    check_devices("trace", model, arguments)
    try:
        return _trace(model, arguments, real=False)
    except TraceError:
        # code that looks at values needs some
        return _trace(model, arguments, real=True)


def _trace(model: nn.Module, arguments: Arguments, *, real: bool) -> ChannelGraph:
    shadow = Shadow(model, arguments, real=real)
    store = LabelStore()
    labels = label_tensors(store, shadow)
    _tie_attention(store, labels, model)
    tracer = Tracer(shadow, labels, store)
    records = [_run(tracer, model, arguments, training=False)]
    try:
        if not _trains_alike(shadow, records[0]):
            records.append(_run(tracer, model, arguments, training=True))
    except TraceError as error:
        warnings.warn(f"only evaluation mode was traced: {error}", RsPruneWarning, stacklevel=3)
    used = frozenset[str]().union(*(step.flow.tensors for r in records for step in r.steps))
    for name, dims in labels.items():
        for own in dims.values() if name not in used else ():
            store.freeze(own, Frozen("", "", "is not used by forward"))
    known = len(store.frozen)
    settled = settle(Traced(model, arguments, labels, records, real), store)
    reasons = [why for _, why in store.frozen]
    for why in dict.fromkeys(why for why in reasons[known:] if why.reason != NUMBER):
        names = [group.name for group in settled.groups if group.reason == str(why)]
        warnings.warn(
            f"{', '.join(names) or 'some channels'}: left whole by {why}. Take sizes from tensors "
            "(x.flatten(1), x.shape[1]) or from module attributes to have them cut.",
            RsPruneWarning,
            stacklevel=3,
        )
    return ChannelGraph(
        groups=settled.groups,
        frozen=tuple(dict.fromkeys(why for why in reasons if why.operator)),
        statistics=_over_prunable(tracer.statistics, settled),
        shapes={name: tuple(t.shape) for name, t in named_tensors(model).items()},
        labels=labels,
        root=settled.root,
        records=tuple(records),
        arguments=arguments,
        real=real,
        attributes=settled.attributes,
    )


def _trains_alike(shadow: Shadow, record: Record) -> bool:
    """Whether training runs the same operators as evaluation, but for dropout and counters."""
    lister = Lister(shadow)
    try:
        outputs = shadow.run(lister, training=True)
    except Exception:  # the run that is traced says what is wrong
        return False
    dropouts = {name for name, m in shadow.model.named_modules() if isinstance(m, _DropoutNd)}
    runs = [
        [entry for entry in listing.entries if entry[1] not in dropouts]
        for listing in (record.listing, lister.listing)
    ]
    return runs[0] == runs[1] and Listing.sources(outputs) == record.sources


def _over_prunable(noted: Sequence[tuple[str, Labels]], settled: Settled) -> tuple[str, ...]:
    """The modules whose statistics run over channels that can be dropped."""
    prunable = np.zeros(len(settled.root), dtype=bool)
    for group in settled.groups:
        prunable[group.roots] = group.prunable
    found = [module for module, labels in noted if prunable[settled.root[labels]].any()]
    return tuple(dict.fromkeys(found))


def _run(tracer: Tracer, model: nn.Module, arguments: Arguments, *, training: bool) -> Record:
    try:
        outputs = tracer.run(training=training)
    except Exception as error:
        mode = "training" if training else "evaluation"
        raise TraceError(f"In {mode} mode, {explain(error, model, arguments)}") from error
    for tensor, source in zip(tensors_in(outputs), tracer.record.sources, strict=True):
        if source is None and tensor.is_floating_point() and not is_given(tensor):
            raise TraceError(
                f"An output of {type(model).__name__} was made by code that cannot be followed; "
                "it comes out of no operator of torch."
            )
        for block in tracer.read(tensor).blocks:
            tracer.store.freeze(block.labels, Frozen("", "", "is an output of the model"))
    return tracer.record


def _tie_attention(store: LabelStore, labels: TensorLabels, model: nn.Module) -> None:
    """nn.MultiheadAttention is as wide inside as outside: a head is a unit of both."""
    for name, module in model.named_modules():
        if not isinstance(module, nn.MultiheadAttention):
            continue
        prefix = f"{name}." if name else ""
        why = Frozen("MultiheadAttention", name, "heads stay whole")
        wide = [labels[f"{prefix}out_proj.weight"].get(d) for d in (0, 1)]
        if module._qkv_same_embed_dim:
            packed = labels[f"{prefix}in_proj_weight"]
            wide += [packed.get(1), *packed[0].reshape(3, -1)]
        else:
            wide += [labels[f"{prefix}{part}_proj_weight"].get(0) for part in "qkv"]
            wide.append(labels[f"{prefix}q_proj_weight"].get(1))
        first = wide[0]
        if first is None:
            continue
        for other in wide[1:]:
            if other is not None:
                store.unite(first, other, why)
        store.tie(first.reshape(module.num_heads, -1), 1, why)
