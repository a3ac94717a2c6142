"""A weightless double of a model: it runs the model's code and computes nothing.

The double shares no tensor with the model: its parameters, buffers and inputs are on torch's meta
device, where tensors have a shape and a dtype but no data. Integer and boolean tensors (tables of
indices, counters) are small and keep their values. Running the double leaves the model, its mode,
its gradients and every random generator as they were.
"""

from __future__ import annotations

import copy
import inspect
import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from traceback import walk_tb
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from rsprune.errors import InvalidParameterError

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def bind(owner: str, model: nn.Module, example_inputs: Any) -> Arguments:
    """``example_inputs`` as positional and keyword arguments of ``model.forward``.

    A tensor or a list is the one argument; a tuple holds the positional arguments; a dict whose
    keys are parameters of ``forward`` holds keyword arguments, and is the one argument otherwise.
    A dict of keyword arguments may also end a tuple.
    """
    if example_inputs is None or not any(
        isinstance(x, Tensor) for x in tree_leaves(example_inputs)
    ):
        raise InvalidParameterError(
            owner, "example_inputs", "a tensor, or a tuple or dict that holds tensors",
            example_inputs, "Pass one batch as the model gets it: torch.randn(1, 3, 32, 32).",
        )  # fmt: skip
    names = _keywords(model)
    if isinstance(example_inputs, dict):
        if names is None or set(example_inputs) <= names:
            return (), dict(example_inputs)
        return (example_inputs,), {}
    if not isinstance(example_inputs, tuple) or hasattr(example_inputs, "_fields"):
        return (example_inputs,), {}
    last = example_inputs[-1]
    if isinstance(last, dict) and last and _by_name(model, example_inputs[:-1], last):
        return example_inputs[:-1], dict(last)
    return example_inputs, {}


def as_inputs(arguments: Arguments) -> Any:
    """Bound arguments as ``example_inputs``."""
    args, kwargs = arguments
    if not args:
        return kwargs
    return (*args, kwargs) if kwargs else args


def _by_name(model: nn.Module, args: tuple[Any, ...], last: dict[Any, Any]) -> bool:
    """Whether ``model.forward`` takes these positional arguments and the dict's as keywords."""
    names = _keywords(model)
    if names is not None:
        return set(last) <= names
    try:
        inspect.signature(model.forward).bind(*args, **last)
    except TypeError:
        return False
    return True


def _keywords(model: nn.Module) -> set[str] | None:
    """The names ``model.forward`` takes as keywords; None if it takes any."""
    parameters = inspect.signature(model.forward).parameters.values()
    kinds = {p.kind for p in parameters}
    if inspect.Parameter.VAR_KEYWORD in kinds:
        return None
    taken = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name for p in parameters if p.kind in taken}


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """All parameters and buffers by name, each once, under its first name."""
    found: dict[str, Tensor] = dict(model.named_parameters())
    known = set(map(id, found.values()))
    found.update({name: t for name, t in model.named_buffers() if id(t) not in known})
    return found


def check_model(owner: str, model: object) -> None:
    """Refuse what is not a module of plain Python."""
    if not isinstance(model, nn.Module):
        raise InvalidParameterError(
            owner, "model", "a torch.nn.Module", type(model).__name__, "Pass the model itself."
        )
    for name, module in model.named_modules():
        where = f"{type(module).__name__} at '{name}'" if name else type(module).__name__
        if isinstance(module, torch.jit.ScriptModule):
            raise InvalidParameterError(
                owner, "model", "a module of plain Python, not a scripted or traced one", where,
                "Pass the module it was made from.",
            )  # fmt: skip
        if any(map(is_lazy, vars(module)["_parameters"].values())):
            raise InvalidParameterError(
                owner, "model", "a module with initialised parameters, not a lazy one", where,
                "Run it once on real data first.",
            )  # fmt: skip
        if "quantized" in type(module).__module__.split("."):
            raise InvalidParameterError(
                owner, "model", "a module in floating point, not a quantised one", where,
                "Prune first, quantise afterwards.",
            )  # fmt: skip


def check_devices(owner: str, model: nn.Module, arguments: Arguments) -> None:
    """Refuse inputs that are on another device than the model."""
    devices = {tensor.device for tensor in named_tensors(model).values()}
    for tensor in tree_leaves(arguments):
        if isinstance(tensor, Tensor) and devices and tensor.device not in devices:
            raise InvalidParameterError(
                owner, "example_inputs", f"on the model's device, {' or '.join(map(str, devices))}",
                f"a tensor on device {tensor.device}", "Move one of them with .to(device).",
            )  # fmt: skip


def replica(model: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """A copy of ``model`` around other parameters and buffers; its own are never copied.

    ``tensors`` holds a stand-in for every parameter and buffer that ``named_tensors`` lists.
    """
    memo: dict[int, Any] = {}
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor):  # neither parameter nor buffer
                memo[id(value)] = value.detach().clone()
    originals = named_tensors(model)
    memo.update({id(tensor): tensors[name] for name, tensor in originals.items()})
    plain = [module for module in model.modules() if _copies_plainly(type(module))]
    for module in plain:
        memo[id(module)] = type(module).__new__(type(module))
    for module in plain:
        state = vars(memo[id(module)])
        for name, value in vars(module).items():
            state[name] = _copied(value, memo)
    return copy.deepcopy(model, memo)


def _copies_plainly(kind: type[nn.Module]) -> bool:
    """Whether to copy an instance means to copy its attributes."""
    own = ("__deepcopy__", "__getstate__", "__reduce__", "__reduce_ex__")
    return all(getattr(kind, name, None) is getattr(nn.Module, name, None) for name in own)


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    """As copy.deepcopy, but quick with what modules mostly hold."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    known = memo.get(id(value))
    if known is not None:
        return known
    if type(value) is OrderedDict and not value:
        return OrderedDict()
    if type(value) is dict:
        new = memo[id(value)] = {}
        new.update({key: _copied(entry, memo) for key, entry in value.items()})
        return new
    return copy.deepcopy(value, memo)


class Shadow:
    """A double of ``model`` and of its inputs, without data.

    Args:
        model: the model to double.
        arguments: its inputs, from :func:`bind`.
        real: True to work with copies of the real tensors instead, for models whose Python code
            looks at values.
        tensors: what to double in place of the model's parameters and buffers, by name.

    Attributes:
        model: the double.
        tensors: its parameters and buffers by name.
        arguments: its inputs.
        stack: the names of the modules that are running, outermost first.
    """

    def __init__(
        self,
        model: nn.Module,
        arguments: Arguments,
        *,
        real: bool = False,
        tensors: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.real = real
        originals = named_tensors(model) if tensors is None else tensors
        self.tensors = {name: self._double(tensor) for name, tensor in originals.items()}
        self.model = replica(model, self.tensors)
        self.arguments: Arguments = tree_map_only(Tensor, self._double, arguments)
        self.stack: list[str] = []
        for name, module in self.model.named_modules():
            self._watch(name, module)

    def _double(self, tensor: Tensor) -> Tensor:
        source = tensor.detach()
        has_values = self.real or not (source.is_floating_point() or source.is_complex())
        if has_values and not source.is_meta:
            double = source.clone()
        else:
            double = torch.empty_strided(
                source.shape, source.stride(), dtype=source.dtype, device="meta"
            )
        return nn.Parameter(double, False) if isinstance(tensor, nn.Parameter) else double

    def _watch(self, name: str, module: nn.Module) -> None:
        def enter(*_: Any) -> None:
            self.stack.append(name)

        def leave(*_: Any) -> None:
            self.stack.pop()

        module.register_forward_pre_hook(enter, prepend=True)
        module.register_forward_hook(leave, always_call=True)

    @property
    def running(self) -> str:
        """The name of the innermost module that is running."""
        return self.stack[-1] if self.stack else ""

    def run(self, observer: Observer, *, training: bool) -> Any:
        """Run the double once, in training or in evaluation mode, and return its output."""
        self.model.train(training)
        self.stack.clear()
        args, kwargs = self.arguments
        with undisturbed(), torch.no_grad(), _slow_attention(), observer:
            return self.model(*args, **kwargs)


class Observer(TorchDispatchMode):
    """Sees every operator that a shadow runs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and the guard would import torch's compiler

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        out = execute(func, args, kwargs)
        self.observe(func, args, kwargs, out)
        return out

    def observe(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Called after every operator."""


def storage_of(tensor: Tensor) -> int:
    """Equal for a tensor and its views, with or without data."""
    return int(tensor.untyped_storage()._cdata)


_aten = torch.ops.aten
_IN_PLACE = {
    _aten.relu_.default, _aten.hardswish_.default, _aten.silu_.default, _aten.hardtanh_.default,
    _aten.hardsigmoid_.default, _aten.sigmoid_.default, _aten.leaky_relu_.default,
}  # fmt: skip
_KEEP_SHAPE = _IN_PLACE | {
    _aten.native_batch_norm.default, _aten.relu.default, _aten.hardswish.default,
    _aten.silu.default, _aten.hardtanh.default, _aten.hardsigmoid.default, _aten.sigmoid.default,
    _aten.leaky_relu.default, _aten.gelu.default,
}  # fmt: skip


def tensors_among(args: Iterable[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """The tensors among the arguments of an operator."""
    found: list[Tensor] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found.extend(entry for entry in value if isinstance(entry, Tensor))
    return found


def execute(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operator; constants that Python code made on the fly go where the data is."""
    if func in _KEEP_SHAPE and args[0].is_meta:
        # torch's own way of finding these shapes takes up to two milliseconds
        if func is _aten.native_batch_norm.default:
            return torch.empty_like(args[0]), args[0].new_empty(0), args[0].new_empty(0)
        return args[0] if func in _IN_PLACE else torch.empty_like(args[0])
    tensors = tensors_among(args, kwargs)
    on_meta = sum(tensor.is_meta for tensor in tensors)
    if 0 < on_meta < len(tensors):
        args, kwargs = tree_map_only(Tensor, lambda t: t.to("meta"), (args, kwargs))
    return func(*args, **kwargs)


def explain(error: Exception, model: nn.Module, arguments: Arguments) -> str:
    """What a model raised, on which inputs, and in which of its modules."""
    leaves = tree_leaves(arguments)
    shapes = ", ".join(str(tuple(leaf.shape)) for leaf in leaves if isinstance(leaf, Tensor))
    name, module = innermost(error)
    where = f", in '{name}' ({type(module).__name__})" if name else ""
    return (
        f"{type(model).__name__} failed on inputs of shape {shapes}{where}: "
        f"{type(error).__name__}: {error}"
    )


def innermost(error: Exception) -> tuple[str, nn.Module | None]:
    """The innermost module on the way to an error, and its name."""
    selves = (frame.f_locals.get("self") for frame, _ in walk_tb(error.__traceback__))
    running = [module for module in selves if isinstance(module, nn.Module)]
    names = {module: name for name, module in running[0].named_modules()} if running else {}
    found = [module for module in running if names.get(module)]
    return (names[found[-1]], found[-1]) if found else ("", None)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """In evaluation mode; afterwards every module is in its own mode again."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def undisturbed() -> Iterator[None]:
    """Start all random generators of the CPU anew, and leave them as they were."""
    python, numbers, state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    random.seed(0)
    np.random.seed(0)
    torch.default_generator.manual_seed(0)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)
        torch.set_rng_state(state)


@contextmanager
def _slow_attention() -> Iterator[None]:
    """Switch off the fused kernels of nn.MultiheadAttention, which hide what they do."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
