"""profile: what it counts, whom it attributes it to, and what it leaves alone."""

from __future__ import annotations

import copy
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.flop_counter import FlopCounterMode

from rsprune.errors import InvalidParameterError, TraceError
from rsprune.metrics import profile
from tests.zoo import import_torchvision

TORCHVISION = (
    "alexnet", "densenet121", "efficientnet_b0", "googlenet", "mobilenet_v3_large",
    "regnet_y_400mf", "resnet50", "shufflenet_v2_x1_0", "swin_t", "vit_b_16",
)  # fmt: skip


def torch_flops(model: nn.Module, *inputs: Tensor) -> int:
    """What torch counts, on the meta device: on a CPU it does not see inside fused attention."""
    double = copy.deepcopy(model).eval().to("meta")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        double(*(x.to("meta") for x in inputs))
    return counter.get_total_flops()


@pytest.mark.parametrize(
    ("layer", "shape", "weights", "macs"),
    [
        (nn.Conv2d(3, 8, 3, padding=1), (1, 3, 5, 5), 3 * 8 * 9, 3 * 8 * 9 * 25),
        (nn.Conv2d(4, 8, 3, stride=2), (2, 4, 7, 7), 4 * 8 * 9, 2 * 4 * 8 * 9 * 9),
        (nn.Conv2d(6, 12, 3, groups=3), (1, 6, 4, 4), 2 * 12 * 9, 2 * 12 * 9 * 4),
        (nn.Conv2d(6, 12, 3, groups=6), (1, 6, 4, 4), 12 * 9, 12 * 9 * 4),
        (nn.Conv1d(3, 4, 5), (1, 3, 9), 3 * 4 * 5, 3 * 4 * 5 * 5),
        (nn.Conv3d(2, 3, 2), (1, 2, 3, 4, 5), 2 * 3 * 8, 2 * 3 * 8 * 2 * 3 * 4),
        (nn.ConvTranspose2d(3, 5, 2, stride=2), (1, 3, 4, 4), 3 * 5 * 4, 3 * 5 * 4 * 16),
        (nn.ConvTranspose1d(4, 6, 3, groups=2), (1, 4, 7), 4 * 3 * 3, 4 * 3 * 3 * 7),
        (nn.Linear(7, 5), (3, 7), 35, 3 * 35),
        (nn.Linear(7, 5, bias=False), (7,), 35, 35),
        (nn.Linear(7, 5), (2, 4, 7), 35, 2 * 4 * 35),
        (nn.BatchNorm2d(3), (1, 3, 4, 4), 0, 0),
    ],
    ids=str,
)
def test_hand_counts(layer: nn.Module, shape: tuple[int, ...], weights: int, macs: int) -> None:
    """Every kind of layer costs what a pencil says, and half of what torch says."""
    x = torch.randn(shape)
    found = profile(layer, x)
    assert (found.weights, found.macs) == (weights, macs)
    assert found.params == sum(p.numel() for p in layer.parameters())
    assert 2 * found.macs == torch_flops(layer, x)


@pytest.mark.parametrize("keys", [8, 6], ids=["packed", "separate"])
def test_attention(keys: int) -> None:
    """Four projections and two products, in one row, though out_proj is a module of its own."""
    attention = nn.MultiheadAttention(8, 2, kdim=keys, vdim=keys, batch_first=True)
    query, memory = torch.randn(1, 5, 8), torch.randn(1, 3, keys)
    found = profile(attention, (query, memory, memory))
    weights = 8 * 8 + 2 * keys * 8 + 8 * 8
    projections = 5 * 8 * 8 + 3 * 2 * keys * 8 + 5 * 8 * 8
    assert found.weights == weights
    assert found.macs == projections + 2 * (5 * 3 * 8)
    assert [(layer.kind, layer.weights) for layer in found.layers] == [
        ("MultiheadAttention", weights)
    ]
    assert found.idle_weights == 0


class Products(nn.Module):
    """Matrix products outside of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.table = nn.Parameter(torch.randn(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        x = F.scaled_dot_product_attention(x, x, x)  # (2, 3, 4)
        return torch.einsum("nij,jk->nik", self.layer(x), self.table)


def test_products_outside_of_layers() -> None:
    """They count for the module whose code runs them, also where that is the model itself."""
    found = profile(Products(), torch.randn(2, 3, 4))
    outer, inner = found.layers
    assert (outer.name, outer.kind, outer.output_shape) == ("", "Products", (2, 3, 6))
    assert outer.macs == 2 * (2 * 3 * 3 * 4) + 2 * 3 * 4 * 6
    assert (inner.name, inner.macs, inner.weights) == ("layer", 2 * 3 * 16, 16)
    assert found.weights == 16
    assert found.params == 16 + 4 + 24
    assert 2 * found.macs == torch_flops(Products(), torch.randn(2, 3, 4))


def test_layers_and_shares() -> None:
    """Rows come in the order of the calls, and the shares add up to one."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    found = profile(model, torch.randn(1, 3, 4, 4))
    first, last = found.layers
    assert (first.name, first.kind, first.output_shape) == ("0", "Conv2d", (1, 4, 2, 2))
    assert (last.name, last.kind, last.output_shape) == ("3", "Linear", (1, 2))
    assert (first.macs, last.macs, found.macs) == (432, 32, 464)
    assert first.share + last.share == pytest.approx(1)
    assert first.share == pytest.approx(432 / 464)


def test_repeated_calls_add_up() -> None:
    """A module that is called twice works twice, with the same weights."""
    layer = nn.Linear(4, 4)
    found = profile(nn.Sequential(layer, nn.ReLU(), layer), torch.randn(1, 4))
    (row,) = found.layers
    assert (row.macs, row.weights, found.params) == (32, 16, 20)


def test_tied_weights_count_once() -> None:
    """Two layers with one weight have one weight, and both their products."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    found = profile(model, torch.randn(1, 4))
    assert (found.macs, found.weights, found.params) == (32, 16, 24)
    assert [layer.weights for layer in found.layers] == [16, 0]


@pytest.mark.parametrize("wrap", [parametrizations.weight_norm, parametrizations.spectral_norm])
def test_parametrized_weights(wrap: Any) -> None:
    """A weight that is computed from others counts as the weight it is."""
    found = profile(nn.Sequential(wrap(nn.Conv2d(3, 4, 3, bias=False))), torch.randn(1, 3, 3, 3))
    assert (found.weights, found.macs) == (108, 108)


class Auxiliary(nn.Module):
    """A head for training only."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.extra = (nn.Linear(4, n) for n in (4, 2, 3))

    def forward(self, x: Tensor) -> Any:
        x = self.body(x)
        return (self.head(x), self.extra(x)) if self.training else self.head(x)


def test_evaluation_mode() -> None:
    """Heads for training only are no work; their weights are counted, and shown as not run."""
    found = profile(Auxiliary().train(), torch.randn(1, 4))
    assert [layer.name for layer in found.layers] == ["body", "head"]
    assert (found.macs, found.weights, found.idle_weights) == (24, 36, 12)
    assert "(not run)" in str(found)


@pytest.mark.skipif(find_spec("torchvision") is None, reason="needs torchvision")
@pytest.mark.parametrize("name", TORCHVISION)
def test_agrees_with_torch(name: str) -> None:
    """Half of torch's flops, on networks of every kind; all weights are somebody's."""
    models = import_torchvision().models
    options = {"init_weights": False} if name == "googlenet" else {}
    model = models.get_model(name, weights=None, **options)
    x = torch.empty(1, 3, 224, 224, device="meta")
    found = profile(model, x)
    assert 2 * found.macs == torch_flops(model, x)
    assert found.params == sum(p.numel() for p in model.parameters())
    heads = getattr(model, "aux_logits", False)
    assert (found.idle_weights > 0) == heads


def test_meta_device_and_no_memory() -> None:
    """A model of a million million weights is counted: nothing is allocated."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(10**6, 10**6, bias=False), nn.BatchNorm1d(10**6))
    found = profile(model, torch.empty(1, 10**6))
    assert found.macs == found.weights == 10**12


def test_the_model_is_untouched() -> None:
    """Mode, weights, statistics, gradients, hooks and generators stay as they were."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten())
    x = torch.randn(2, 3, 4, 4, requires_grad=True)
    model(x).sum().backward()
    model[1].eval()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    generator = torch.get_rng_state()
    profile(model, x)
    assert model.training
    assert not model[1].training
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(p.requires_grad for p in model.parameters())
    kept = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(torch.equal(a, b) for a, b in zip(kept, gradients, strict=True))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert torch.equal(torch.get_rng_state(), generator)


class LooksAtValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.scaled_dot_product_attention(x, x, x)  # (1, 2, 3, 4)
        return self.layer(x) if x.sum() > 0 else x


def test_code_that_looks_at_values() -> None:
    """Where tensors without data do not suffice, real ones are used, and counted as well."""
    x = torch.ones(1, 2, 3, 4)
    products = 2 * (2 * 3 * 3 * 4)
    assert profile(LooksAtValues(), x).macs == products + 6 * 16
    assert profile(LooksAtValues(), -x).macs == products


def test_inference_mode() -> None:
    """Inside of torch.inference_mode the counts are the same."""
    model, x = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(1, 3, 8)
    outside = profile(model, x)
    with torch.inference_mode():
        assert profile(model, x) == outside
        assert profile(copy.deepcopy(model), torch.randn(1, 3, 8)) == outside


class Keywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 2), nn.Linear(3, 2)

    def forward(self, a: Tensor, b: Tensor | None = None) -> dict[str, Tensor]:
        return {"out": self.left(a) + (0 if b is None else self.right(b.view(-1, 3)))}


def test_several_inputs() -> None:
    """A tensor, a tuple and keyword arguments."""
    a, b = torch.randn(1, 4), torch.randn(1, 3)
    assert profile(Keywords(), a).macs == 8
    assert profile(Keywords(), (a, b)).macs == 14
    assert profile(Keywords(), {"b": b, "a": a}).macs == 14


def test_a_model_that_raises() -> None:
    """The error names the module, the inputs' shapes and the original message."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sequential(nn.ReLU(), nn.Conv2d(5, 6, 1)))
    with pytest.raises(TraceError) as caught:
        profile(model, torch.randn(1, 3, 8, 8))
    message = str(caught.value)
    assert "'1.1' (Conv2d)" in message
    assert "(1, 3, 8, 8)" in message
    assert "expected input[1, 4, 6, 6] to have 5 channels" in message
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_model_whose_own_code_raises() -> None:
    """An error outside of all layers names the model."""
    with pytest.raises(TraceError, match=r"Keywords failed on .* \(1, 4\), \(5,\): RuntimeError"):
        profile(Keywords(), (torch.randn(1, 4), torch.randn(5)))


@pytest.mark.parametrize("inputs", [None, (), "x", 3, {}])
def test_no_example_input(inputs: object) -> None:
    """Inputs without a tensor are refused."""
    with pytest.raises(InvalidParameterError, match="'example_inputs' parameter of profile"):
        profile(nn.Linear(2, 2), inputs)


def test_no_model() -> None:
    """What is not a module is refused."""
    with pytest.raises(InvalidParameterError, match="'model' parameter of profile"):
        profile(torch.relu, torch.randn(1))  # type: ignore[arg-type]


def test_prints_as_a_table() -> None:
    """Names to the left, numbers to the right, totals at the end."""
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Flatten(), nn.Linear(64, 10))
    assert str(profile(model, torch.randn(1, 3, 4, 4))).splitlines() == [
        "module  kind    output    weights   MACs  share",
        "0       Conv2d  1x16x2x2      432  1,728  73.0%",
        "2       Linear  1x10          640    640  27.0%",
        "total                       1,072  2,368",
        "1,098 parameters",
    ]
