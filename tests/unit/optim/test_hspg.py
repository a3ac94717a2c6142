"""HSPG finds groups, takes them in several forms, and refuses groups that make no sense."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from rsprune.errors import InvalidParameterError
from rsprune.optim import HSPG


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_finds_exactly_the_true_groups(seed: int, momentum: float) -> None:
    """Noisy regression on 40 groups of 5 features, 8 of them real; stochastic gradients."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.zeros(40, 5)
    real = torch.randperm(40, generator=generator)[:8]
    truth[real] = torch.randn(8, 5, generator=generator).sign() * (
        0.5 + torch.rand(8, 5, generator=generator)
    )
    x = torch.randn(2000, 200, generator=generator)
    y = x @ truth.flatten() + 0.5 * torch.randn(2000, generator=generator)
    w = nn.Parameter(torch.zeros(40, 5))
    lr = 0.02 * (0.1 if momentum else 1.0)
    optimizer = HSPG([w], lr=lr, lam=0.3, prox_steps=30 * 63, momentum=momentum)
    rates = torch.optim.lr_scheduler.MultiStepLR(optimizer, [40, 55])
    for _ in range(60):
        for index in torch.randperm(2000, generator=generator).split(32):
            rest = x[index] @ w.detach().flatten() - y[index]
            w.grad = (x[index].t() @ rest / len(index)).view(40, 5)
            optimizer.step()
        rates.step()
    found = (w != 0).any(1)
    assert torch.equal(found.nonzero().flatten(), real.sort().values)
    assert torch.equal((w == 0).all(1), (w == 0).any(1))  # groups are zero as a whole or not at all


def test_default_is_one_group_per_output_filter() -> None:
    weight = nn.Parameter(torch.ones(4, 3, 2, 2))
    weight.data[1] *= 0.01
    optimizer = HSPG([weight], lr=0.1, lam=1.0)
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    assert (weight[1] == 0).all()
    assert (weight[[0, 2, 3]] != 0).all()


def by_filter(params: list[Tensor]) -> list[list[tuple[Tensor, int, int]]]:
    """The filter of a convolution with its bias and its batch norm."""
    return [[(param, 0, i) for param in params] for i in range(params[0].shape[0])]


@pytest.mark.parametrize("as_list", [True, False])
def test_groups_across_parameters(as_list: bool) -> None:
    """A filter goes with its bias and its batch norm: all zero, or none."""
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6)
    params = [conv.weight, conv.bias, norm.weight, norm.bias]
    source = by_filter(params) if as_list else by_filter
    optimizer = HSPG(params, lr=0.1, lam=1.0, prox_steps=2, groups=source)
    for _ in range(12):
        optimizer.zero_grad()
        (norm(conv(torch.randn(8, 2, 5, 5)))[:, :3] - 1).square().mean().backward()
        optimizer.step()
    zero = torch.stack([(p.flatten(1) if p.dim() > 1 else p[:, None]).eq(0).all(1) for p in params])
    some = torch.stack([(p.flatten(1) if p.dim() > 1 else p[:, None]).eq(0).any(1) for p in params])
    assert torch.equal(zero[0], zero.all(0))
    assert 0 < int(zero[0].sum()) < 6
    assert torch.equal(some[0], zero[0])


def test_list_of_groups_is_shared_out_over_parameter_groups() -> None:
    a, b, c = (nn.Parameter(torch.full((2, 3), 0.01)) for _ in range(3))
    optimizer = HSPG(
        [{"params": [a]}, {"params": [b]}, {"params": [c], "lam": 0.0}],
        lr=0.1, lam=1.0, groups=[[(b, 1, 0), (b, 1, 2)], [(a, 0, 1)]],
    )  # fmt: skip
    for param in (a, b, c):
        param.grad = torch.zeros_like(param)
    optimizer.step()
    assert (a[1] == 0).all()
    assert (a[0] != 0).all()  # in no group
    assert (b[:, [0, 2]] == 0).all()
    assert (b[:, 1] != 0).all()
    assert (c != 0).all()


def test_groups_survive_the_state_dict() -> None:
    """A run can be resumed without giving the groups again."""
    param = nn.Parameter(torch.full((2, 3), 0.01))
    optimizer = HSPG([param], lr=0.1, lam=1.0, groups=[[(param, 1, 1)]])
    other = HSPG([param], lr=0.1, lam=1.0)
    other.load_state_dict(optimizer.state_dict())
    param.grad = torch.zeros_like(param)
    other.step()
    assert torch.equal(param == 0, torch.tensor([[False, True, False]] * 2))


def test_group_that_becomes_zero_forgets_its_momentum() -> None:
    param = nn.Parameter(torch.tensor([[1.0, 1.0], [0.01, 0.01]]))
    optimizer = HSPG([param], lr=0.1, lam=1.0, momentum=0.9)
    param.grad = torch.ones_like(param)
    optimizer.step()
    buffer = optimizer.state[param]["momentum_buffer"]
    assert torch.equal(buffer, torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    optimizer.step()
    assert (buffer[1] == 1).all()  # a group that stays zero gathers momentum again


def test_scalars_and_single_tensors_can_be_grouped() -> None:
    scale, weight = nn.Parameter(torch.tensor(0.01)), nn.Parameter(torch.full((2, 2), 0.01))
    optimizer = HSPG(
        [{"params": scale}, {"params": weight}], lr=0.1, lam=1.0,
        groups=[[(scale, 0, 0)], [(weight, 0, 1)]],
    )  # fmt: skip
    for param in (scale, weight):
        param.grad = torch.zeros_like(param)
    optimizer.step()
    assert scale == 0
    assert torch.equal((weight == 0).all(1), torch.tensor([False, True]))


def test_a_parameter_group_keeps_groups_of_its_own() -> None:
    a, b = (nn.Parameter(torch.full((2, 2), 0.01)) for _ in range(2))
    optimizer = HSPG(
        [{"params": [a], "groups": [[(a, 1, 0)]]}, {"params": [b]}],
        lr=0.1, lam=1.0, groups=[[(b, 0, 0)]],
    )  # fmt: skip
    a.grad, b.grad = torch.zeros_like(a), torch.zeros_like(b)
    optimizer.step()
    assert torch.equal(a == 0, torch.tensor([[True, False]] * 2))
    assert torch.equal(b == 0, torch.tensor([[True, True], [False, False]]))


def test_parameters_may_leave_the_meta_device_one_by_one() -> None:
    with torch.device("meta"):
        params = [nn.Parameter(torch.ones(2, 2)) for _ in range(2)]
    optimizer = HSPG(params, lr=0.1, lam=1.0)
    for param in params:
        torch.utils.swap_tensors(param, nn.Parameter(torch.ones(2, 2)))
        param.grad = torch.ones(2, 2)
        optimizer.step()
    assert all((param < 1).all() for param in params)


def test_nan_stays_visible_in_both_stages_and_forms() -> None:
    for prox_steps in (5, 0):
        for foreach in (False, True):
            w = nn.Parameter(torch.ones(3, 2))
            w.grad = torch.zeros(3, 2)
            w.grad[1, 1] = torch.nan
            HSPG([w], lr=0.1, lam=1.0, prox_steps=prox_steps, foreach=foreach).step()
            assert w[1].isnan().any()
            assert w[[0, 2]].isfinite().all()


def test_prints_without_its_members() -> None:
    optimizer = HSPG([nn.Parameter(torch.ones(2000, 2))])
    assert "members" not in repr(optimizer)
    assert "group_count: 2000" in repr(optimizer)
    assert "members" in optimizer.param_groups[0]


PARAM, OTHER = nn.Parameter(torch.ones(4, 3)), nn.Parameter(torch.ones(2))


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        (lambda: [[(PARAM, 0, 4)]], "index in the range [0, 4)"),
        (lambda: [[(PARAM, 0, -1)]], "index in the range [0, 4)"),
        (lambda: [[(PARAM, 2, 0)]], "dim in the range [0, 2)"),
        (lambda: [[(OTHER, 0, 0)]], "same parameter group"),
        (lambda: [[(PARAM, 0, 0), (OTHER, 0, 0)]], "same parameter group"),
        (lambda: [[(PARAM, 0, 0)], [(PARAM, 0, 0)]], "share no element"),
        (lambda: [[(PARAM, 0, 0)], [(PARAM, 1, 0)]], "share no element"),
        (lambda: [[]], "at least one slot"),
        (lambda: [[(PARAM, 0)]], "(parameter, dim, index)"),
        (lambda: [[5]], "(parameter, dim, index)"),
        (lambda: [5], "a list of groups"),
        (lambda: 5, "a list of groups"),
        (lambda: lambda _params: 5, "a list of groups"),
        (lambda: [[(PARAM, 0, 1.5)]], "index in the range [0, 4)"),
        (lambda: [[(PARAM, "0", 1)]], "dim in the range [0, 2)"),
    ],
)
def test_bad_groups_are_refused(groups: Callable[[], list], says: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        HSPG([PARAM], groups=groups())
    message = str(caught.value)
    assert message.startswith("The 'groups' parameter of HSPG must be")
    assert says in message
