"""A stand-in for a GPU, where there is none.

Tensors on it say that they are on another device and refuse to meet tensors that are not, as those
of a GPU do; what they compute, the CPU computes. So code that forgets to move a model or a batch is
found on any machine. Nothing is learnt here about speed, memory or rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

import rsprune.files

DEVICE = torch.device("lazy:0")  # a name that torch knows, and needs no library for
_aten = torch.ops.aten
_MEETINGS = {"aten::_to_copy", "aten::copy_", "aten::index"}  # that GPUs allow
_data = WeakTensorKeyDictionary()


class Elsewhere(Tensor):
    """A tensor on the device, around one of the CPU."""

    @staticmethod
    def __new__(cls, data: Tensor) -> Elsewhere:
        own = Tensor._make_wrapper_subclass(
            cls, data.size(), strides=data.stride(), storage_offset=data.storage_offset(),
            dtype=data.dtype, device=DEVICE,
        )  # fmt: skip
        _data[own] = data
        return own

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copied: Tensor = Elsewhere(_data[self].clone())
        if isinstance(self, nn.Parameter):
            copied = nn.Parameter(copied, self.requires_grad)
        return memo.setdefault(id(self), copied)

    # Python's numbers, for which torch would ask the device's library
    def tolist(self) -> Any:
        return _data[self].tolist()

    def item(self) -> Any:
        return _data[self].item()

    def __int__(self) -> int:
        return int(_data[self])

    def __float__(self) -> float:
        return float(_data[self])

    def __bool__(self) -> bool:
        return bool(_data[self])


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    away = any(isinstance(tensor, Elsewhere) for tensor in tensors)
    if away and func._schema.name not in _MEETINGS:
        here = [t for t in tensors if t.device.type == "cpu" and t.dim()]
        assert not here, f"{func} of tensors on {DEVICE} and on the CPU"
    to = None if kwargs.get("device") is None else torch.device(kwargs["device"]).type
    if to == DEVICE.type:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    inner, named = tree_map_only(Elsewhere, lambda tensor: _data[tensor], (args, kwargs))
    out = func(*inner, **named)
    if func is _aten.copy_.default:
        return args[0]
    if to != DEVICE.type and (to is not None or not away):
        return out
    out = tree_map_only(Tensor, lambda t: Elsewhere(t) if t.device.type == "cpu" else t, out)
    return return_and_correct_aliasing(func, args, kwargs, out) if away else out


class _Mode(TorchDispatchMode):
    """Makes the tensors that are asked for on the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


@contextmanager
def device(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inside, the device can be used."""
    make, save = torch.tensor, rsprune.files.save_file

    def tensor(values: Any, *, device: Any = None, **options: Any) -> Tensor:
        return make(values, **options).to(device)  # which else is made beyond any mode

    def save_file(tensors: dict[str, Tensor], *others: Any) -> None:
        save({name: t.cpu() for name, t in tensors.items()}, *others)  # reads memory itself

    patch.setattr(torch, "tensor", tensor)
    patch.setattr(rsprune.files, "save_file", save_file)
    patch.setattr(torch.accelerator, "synchronize", lambda _: None)
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with _Mode():
            yield
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)
