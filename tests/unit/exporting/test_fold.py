"""Batch norms are folded where that is exact, in any user's code, and nowhere else."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rsprune.exporting.fold import fold
from rsprune.runtimes.batches import Inputs
from rsprune.runtimes.program import capture
from tests.surgery import randomise

X = torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Net(nn.Module):
    """A convolution and its norm, as most of the networks below begin."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))


class Branches(Net):
    """Two pairs whose sum has a norm of its own, which follows no layer; and names that mislead."""

    def __init__(self) -> None:
        super().__init__()
        self.bn, self.conv2 = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.after = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(super().forward(x) + self.conv2(self.bn(x))).relu()


class ReadTwice(Net):
    """The convolution's output is used before the norm, too."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.norm(y) + y


class ReadTwiceLater(Net):
    """The norm's output is used twice, which does not matter."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        return y.relu() + y


class SharedNorm(Net):
    """One norm after two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.other(self.norm(self.conv(x)).relu()))


class SharedConv(Net):
    """One convolution before two norms."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.conv(self.norm(self.conv(x)).relu()))


class TiedWeight(SharedNorm):
    """Two convolutions with one weight, and a norm for each."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Conv2d(4, 4, 3, padding=1)
        self.other.weight = self.conv.weight
        self.last = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.other(self.norm(self.conv(x))))


class Standardised(Net):
    """A weight that is computed."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.conv.weight
        return self.norm(F.conv2d(x, weight - weight.mean((1, 2, 3), keepdim=True)))


class Sequences(nn.Module):
    """A norm over the places of a sequence, not over the outputs of the linear layer before it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(36, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x.flatten(2)))


class Images(nn.Module):
    """An unbatched convolution whose rows a functional norm takes for channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 6, 3, padding=1)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("variance", torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(self.conv(x[0]), self.mean, self.variance) + x.mean()


class Own(nn.Module):
    """Parameters of the model's own, called by function; ``bias`` is taken by another."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 4, 1, 1))
        self.bias = nn.Parameter(torch.zeros(1))
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(F.conv2d(x, self.weight)) + self.bias


class Frozen(Net):
    """Statistics of the batch, in evaluation mode, too."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(4, track_running_stats=False)


class AnyNumber(Net):
    """Inputs without names."""

    def forward(self, *images: Tensor) -> Tensor:
        return super().forward(images[0])


def chain(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(*layers, nn.ReLU())


CASES: dict[str, tuple[nn.Module, int]] = {
    "plain": (Net(), 1),
    "bias": (chain(nn.Conv2d(4, 6, 3, stride=2), nn.BatchNorm2d(6, eps=0.1)), 1),
    "same padding": (chain(nn.Conv2d(4, 6, 3, padding="same"), nn.BatchNorm2d(6)), 1),
    "not affine": (chain(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6, affine=False)), 1),
    "grouped": (chain(nn.Conv2d(4, 6, 3, groups=2, bias=False), nn.BatchNorm2d(6)), 1),
    "depthwise": (chain(nn.Conv2d(4, 8, 3, groups=4), nn.BatchNorm2d(8)), 1),
    "transposed": (chain(nn.ConvTranspose2d(4, 6, 2, bias=False), nn.BatchNorm2d(6)), 1),
    "transposed, grouped": (chain(nn.ConvTranspose2d(4, 6, 2, groups=2), nn.BatchNorm2d(6)), 1),
    "one dimension": (chain(nn.Flatten(2), nn.Conv1d(4, 6, 3), nn.BatchNorm1d(6)), 1),
    "linear": (chain(nn.Flatten(), nn.Linear(144, 6), nn.BatchNorm1d(6)), 1),
    "two in a row": (chain(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.BatchNorm2d(6)), 2),
    "norm first": (chain(nn.BatchNorm2d(4), nn.Conv2d(4, 6, 3)), 0),
    "after an activation": (chain(nn.Conv2d(4, 6, 3), nn.ReLU(), nn.BatchNorm2d(6)), 0),
    "group norm": (chain(nn.Conv2d(4, 6, 3), nn.GroupNorm(2, 6)), 0),
    "branches": (Branches(), 2),
    "read twice": (ReadTwice(), 0),
    "read twice later": (ReadTwiceLater(), 1),
    "shared norm": (SharedNorm(), 0),
    "shared convolution": (SharedConv(), 0),
    "tied weight": (TiedWeight(), 0),
    "computed weight": (Standardised(), 0),
    "sequences": (Sequences(), 0),
    "unbatched": (Images(), 0),
    "own parameters": (Own(), 1),
    "batch statistics": (Frozen(), 0),
    "any number of inputs": (AnyNumber(), 1),
}


def norms(program: torch.export.ExportedProgram) -> int:
    target = torch.ops.aten.batch_norm.default
    return sum(node.target is target for node in program.graph.nodes)


@pytest.mark.parametrize(("model", "count"), CASES.values(), ids=CASES)
def test_the_same_outputs_with_fewer_norms(model: nn.Module, count: int) -> None:
    """In double precision the folded program gives the model's outputs, on any batch."""
    randomise(model, 0).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    inputs = Inputs("fold", model, X)
    with torch.no_grad():
        plain = capture(model, inputs)
        program, folded = fold(plain, inputs)
        for size in (1, 5):
            args, _ = inputs.of(size)
            torch.testing.assert_close(
                program.module()(*args), model(*args), rtol=1e-10, atol=1e-10
            )
    assert folded == count
    assert norms(program) == norms(plain) - count
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_what_is_folded_is_gone() -> None:
    """A folded program holds a weight and a bias for each layer, and nothing else."""
    model = randomise(chain(nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6)), 0).eval()
    inputs = Inputs("fold", model, X)
    with torch.no_grad():
        program, _ = fold(capture(model, inputs), inputs)
    assert {name: tuple(t.shape) for name, t in program.state_dict.items()} == {
        "0.weight": (6, 4, 3, 3),
        "0.bias": (6,),
    }
