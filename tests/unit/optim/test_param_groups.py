"""param_groups regularises the weights of convolutions and linear layers, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

import rsprune


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.up = nn.ConvTranspose1d(4, 2, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.attention = nn.MultiheadAttention(8, 2)
        self.head = nn.Linear(8, 5)
        self.tied = nn.Linear(8, 5)
        self.tied.weight = self.head.weight
        self.table = nn.Embedding(7, 8)
        self.scale = nn.Parameter(torch.ones(4))


def names(model: nn.Module, group: dict) -> set[str]:
    by_id = {id(p): name for name, p in model.named_parameters()}
    return {by_id[id(p)] for p in group["params"]}


def test_splits_weights_from_the_rest() -> None:
    net = Net()
    sparse, rest = rsprune.param_groups(net, lam=0.5, weight_decay=0.25)
    assert names(net, sparse) == {
        "conv.weight",
        "up.weight",
        "attention.in_proj_weight",
        "attention.out_proj.weight",
        "head.weight",
    }
    assert sparse["lam"] == 0.5
    assert "weight_decay" not in sparse
    assert (rest["lam"], rest["weight_decay"]) == (0.0, 0.25)
    together = [*sparse["params"], *rest["params"]]
    assert len(together) == len({id(p) for p in together}) == len(list(net.parameters()))


def test_weights_that_are_computed_are_named() -> None:
    """They get no penalty, which is said; to look for them changes nothing."""
    net = Net()
    spectral_norm(net.conv)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with pytest.warns(rsprune.RsPruneWarning, match=r"conv\.weight is computed.*\(1 such"):
        sparse, _ = rsprune.param_groups(net, lam=0.5)
    assert "conv" not in {name.partition(".")[0] for name in names(net, sparse)}
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_exclude_keeps_the_penalty_off() -> None:
    net = Net()
    sparse, rest = rsprune.param_groups(
        net, lam=0.5, exclude=lambda name, p: name.startswith("head") or p.dim() == 3
    )
    assert names(net, sparse) == {
        "conv.weight",
        "attention.in_proj_weight",
        "attention.out_proj.weight",
    }
    assert {"head.weight", "up.weight"} <= names(net, rest)
    assert "weight_decay" not in rest


def test_no_second_group_where_nothing_is_left() -> None:
    assert len(rsprune.param_groups(nn.Linear(2, 2, bias=False), lam=0.1)) == 1


@pytest.mark.parametrize("lam", [0, 1e-4, 1])
def test_any_penalty(lam: float) -> None:
    assert rsprune.param_groups(nn.Linear(2, 2), lam=lam)[0]["lam"] == lam
