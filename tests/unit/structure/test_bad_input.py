"""Whatever is wrong, one clear error says so, and the model is as it was."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rsprune
from rsprune import InvalidParameterError, RsPruneError, TraceError
from tests.surgery import half_drop, tensors_of


def small() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.Flatten(),
        nn.Linear(6 * 16, 5),
    )  # fmt: skip


X = torch.zeros(2, 3, 8, 8)


@pytest.fixture
def model() -> Iterator[nn.Sequential]:
    """A model that is checked afterwards: no error may change it."""
    model = small()
    before = {name: (t, t.detach().clone()) for name, t in tensors_of(model).items()}
    modes = [module.training for module in model.modules()]
    yield model
    for name, tensor in tensors_of(model).items():
        assert tensor is before[name][0]
        assert torch.equal(tensor, before[name][1])
    assert [module.training for module in model.modules()] == modes
    assert not any(module._forward_pre_hooks for module in model.modules())


@pytest.fixture
def graph(model: nn.Sequential) -> Any:
    return rsprune.trace(model, X)


def refused(match: str, kind: type[Exception] = InvalidParameterError) -> Any:
    return pytest.raises(kind, match=match)


def test_the_errors_are_of_one_family() -> None:
    for error in (InvalidParameterError, TraceError, rsprune.VerificationError):
        assert issubclass(error, RsPruneError)


# -- example inputs -----------------------------------------------------------------------------


@pytest.mark.parametrize("inputs", [None, (), {}, [], "image", 3, (None,)])
def test_no_example_input(model: nn.Sequential, inputs: Any) -> None:
    with refused("example_inputs.*tensor"):
        rsprune.trace(model, inputs)


@pytest.mark.parametrize("shape", [(2, 4, 8, 8), (2, 3, 9, 9), (2, 3), (2, 3, 1, 1), (0,)])
def test_wrong_shape(model: nn.Sequential, shape: tuple[int, ...]) -> None:
    """The error repeats what torch said."""
    with pytest.raises(TraceError) as caught:
        rsprune.trace(model, torch.zeros(shape))
    assert caught.value.__cause__ is not None
    assert str(caught.value.__cause__).splitlines()[0][:30] in str(caught.value)


def test_wrong_number_of_inputs(model: nn.Sequential) -> None:
    with pytest.raises((InvalidParameterError, TraceError)):
        rsprune.trace(model, (X, X))


def test_wrong_name_of_an_input() -> None:
    class Named(nn.Module):
        def forward(self, image: Tensor, *, mask: Tensor) -> Tensor:
            return image * mask

    with pytest.raises(RsPruneError):
        rsprune.trace(Named(), {"picture": X, "mask": X})


def test_wrong_device(model: nn.Sequential) -> None:
    """A model on one device and inputs on another: said before anything runs."""
    with pytest.raises(RsPruneError, match="device"):
        rsprune.trace(model, X.to("meta"))


def test_a_model_on_the_meta_device_is_traced() -> None:
    graph = rsprune.trace(small().to("meta"), X.to("meta"))
    assert [group.size for group in graph.groups if group.prunable] == [8, 6]


# -- models -------------------------------------------------------------------------------------


@pytest.mark.parametrize("thing", [None, "resnet50", nn.Conv2d, lambda x: x, {"conv": nn.ReLU()}])
def test_no_model(thing: Any) -> None:
    with refused("model.*Module"):
        rsprune.trace(thing, X)


class Raises(nn.Module):
    """A model that raises, deep inside."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.inner = nn.Sequential(nn.ReLU(), Thrower(error))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.conv(x))


class Thrower(nn.Module):
    """Raises what it was given."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def forward(self, _: Tensor) -> Tensor:
        raise self.error


@pytest.mark.parametrize(
    "error", [ValueError("no such thing"), KeyError("no such thing"), RuntimeError("no such thing")]
)
def test_a_model_that_raises(error: Exception) -> None:
    """The error repeats what the model said, and where it came from."""
    model = Raises(error)
    with refused("no such thing", TraceError) as caught:
        rsprune.trace(model, X)
    assert isinstance(caught.value.__cause__, type(error))
    assert not model.inner._forward_pre_hooks
    assert model.training


def test_a_model_that_raises_in_training_only() -> None:
    class Trains(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                raise RuntimeError("needs targets")
            return self.conv(x).mean((2, 3))

    model = Trains().eval()
    with pytest.warns(rsprune.RsPruneWarning, match="evaluation mode.*needs targets"):
        rsprune.trace(model, X)
    assert not model.training


def test_interrupts_pass() -> None:
    with pytest.raises(KeyboardInterrupt):
        rsprune.trace(Raises(KeyboardInterrupt()), X)


def test_a_scripted_model() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(small())
        holder = nn.Sequential(nn.Conv2d(3, 3, 1), scripted)
    for model in (scripted, holder):
        with refused("script"):
            rsprune.trace(model, X)


def test_a_traced_model() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        recorded = torch.jit.trace(small().eval(), X)
    with refused("traced"):
        rsprune.trace(recorded, X)


def test_a_quantised_model() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantised = torch.ao.quantization.quantize_dynamic(small(), {nn.Linear}, torch.qint8)
    with refused("quanti"):
        rsprune.trace(quantised, X)


def test_a_model_without_parameters() -> None:
    graph = rsprune.trace(nn.Sequential(nn.ReLU(), nn.Flatten()), X)
    assert graph.groups == ()
    assert rsprune.prune(nn.ReLU(), rsprune.trace(nn.ReLU(), X), drop={})(X).shape == X.shape


def test_a_model_of_uninitialised_parameters() -> None:
    with pytest.raises(RsPruneError, match=r"(?i)lazy|initiali"):
        rsprune.trace(nn.Sequential(nn.LazyConv2d(8, 3), nn.ReLU()), X)


# -- drops --------------------------------------------------------------------------------------


def test_no_such_group(model: nn.Sequential, graph: Any) -> None:
    """The error suggests the names that come close."""
    name = graph.groups[0].name
    with refused("drop.*group") as caught:
        rsprune.prune(model, graph, drop={f"{name}x": [0]})
    assert f"'{name}'" in str(caught.value)
    assert "ean" in str(caught.value)


@pytest.mark.parametrize("unit", [8, 100, -1, -8])
def test_units_out_of_range(model: nn.Sequential, graph: Any, unit: int) -> None:
    group = graph.groups[0]
    with refused(rf"drop.*{unit}|{unit}.*drop") as caught:
        rsprune.prune(model, graph, drop={group.name: [0, unit]})
    assert group.name in str(caught.value)


@pytest.mark.parametrize("units", [[0.5], ["0"], [None], [[0, 1]], [True], 3, "012", None])
def test_units_that_are_no_numbers(model: nn.Sequential, graph: Any, units: Any) -> None:
    with refused("drop"):
        rsprune.prune(model, graph, drop={graph.groups[0].name: units})


def test_repeated_units(model: nn.Sequential, graph: Any) -> None:
    with refused("drop.*different"):
        rsprune.prune(model, graph, drop={graph.groups[0].name: [1, 2, 1]})


def test_an_emptied_group(model: nn.Sequential, graph: Any) -> None:
    with refused("drop.*(one|all|empt|left|keep|stay)"):
        rsprune.prune(model, graph, drop={graph.groups[0].name: list(range(8))})


@pytest.mark.parametrize("drop", [None, [0, 1], "conv", 3, [("conv", [0])]])
def test_a_drop_of_the_wrong_kind(model: nn.Sequential, graph: Any, drop: Any) -> None:
    with refused("drop"):
        rsprune.prune(model, graph, drop=drop)


def test_a_group_that_is_frozen(model: nn.Sequential, graph: Any) -> None:
    """It stays whole, and a warning says why."""
    frozen = next(group for group in graph.groups if not group.prunable)
    with pytest.warns(rsprune.RsPruneWarning) as caught:
        slim = rsprune.prune(model, graph, drop={frozen.name: [0]})
    assert frozen.reason in str(caught[0].message)
    assert [tuple(p.shape) for p in slim.parameters()] == [
        tuple(p.shape) for p in model.parameters()
    ]


def test_all_kinds_of_numbers_are_units(model: nn.Sequential, graph: Any) -> None:
    """Tensors, arrays, ranges and sets of integers are lists of units too."""
    name = graph.groups[0].name
    for units in (
        torch.tensor([1, 5]),
        torch.tensor([1, 5]).numpy(),
        range(1, 6, 4),
        {5, 1},
        (5, 1),
    ):
        assert rsprune.prune(model, graph, drop={name: units})[0].out_channels == 6


def test_no_units_drop_nothing(model: nn.Sequential, graph: Any) -> None:
    assert rsprune.prune(model, graph, drop={graph.groups[0].name: []})[0].out_channels == 8


# -- graphs and optimizers ----------------------------------------------------------------------


def test_the_graph_of_another_model(graph: Any) -> None:
    wider = small()
    wider[3] = nn.Conv2d(8, 7, 3)
    other = nn.Sequential(nn.Conv2d(3, 8, 3))
    for stranger in (wider, other):
        with refused("graph"):
            rsprune.prune(stranger, graph, drop=half_drop(graph, 0))


def test_the_graph_of_the_model_before_it_was_pruned(model: nn.Sequential, graph: Any) -> None:
    drop = half_drop(graph, 0)
    slim = rsprune.prune(model, graph, drop=drop)
    with refused("graph"):
        rsprune.prune(slim, graph, drop=drop)


@pytest.mark.parametrize("thing", [None, "graph", [], {}])
def test_no_graph(model: nn.Sequential, thing: Any) -> None:
    with refused("graph"):
        rsprune.prune(model, thing, drop={})


def test_the_graph_as_example_input(model: nn.Sequential) -> None:
    with refused("graph"):
        rsprune.prune(model, X, drop={})


@pytest.mark.parametrize("thing", ["sgd", 0.1, torch.optim.SGD])
def test_no_optimizer(model: nn.Sequential, graph: Any, thing: Any) -> None:
    with refused("optimizer"):
        rsprune.prune(model, graph, drop=half_drop(graph, 0), optimizer=thing)


def test_the_optimizer_of_another_model(model: nn.Sequential, graph: Any) -> None:
    stranger = torch.optim.SGD(small().parameters(), 0.1)
    with refused("optimizer"):
        rsprune.prune(model, graph, drop=half_drop(graph, 0), optimizer=stranger)


# -- verify -------------------------------------------------------------------------------------


def test_verify_notices_a_changed_weight(model: nn.Sequential, graph: Any) -> None:
    drop = half_drop(graph, 0)
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    slim = rsprune.prune(model, graph, drop=drop)
    assert rsprune.verify(model, slim, graph, drop, x) <= 1e-5
    with torch.no_grad():
        slim[5].weight[0, 0] += 1
    with pytest.raises(rsprune.VerificationError):
        rsprune.verify(model, slim, graph, drop, x)


def test_verify_notices_another_drop(model: nn.Sequential, graph: Any) -> None:
    group = graph.groups[0].name
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    slim = rsprune.prune(model, graph, drop={group: [0, 1]})
    with pytest.raises(rsprune.VerificationError):
        rsprune.verify(model, slim, graph, {group: [2, 3]}, x)
    with pytest.raises(RsPruneError):
        rsprune.verify(model, slim, graph, {group: [2]}, x)


def test_verify_refuses_nan(model: nn.Sequential, graph: Any) -> None:
    drop = half_drop(graph, 0)
    slim = rsprune.prune(model, graph, drop=drop)
    broken = copy.deepcopy(slim)
    with torch.no_grad():
        broken[5].bias[0] = float("nan")
    with pytest.raises(rsprune.VerificationError):
        rsprune.verify(model, broken, graph, drop, torch.ones(2, 3, 8, 8))
