"""Every optimizer is a torch.optim.Optimizer in every respect; one suite over all of them."""

from __future__ import annotations

import copy
import io
import pickle
import warnings

import pytest
import torch
from torch import nn

import rsprune
from rsprune.errors import RsPruneWarning
from tests.optimizers import (
    CASES,
    Case,
    assert_same_bits,
    batch,
    loss_closure,
    small_net,
    train,
    weights,
    zeros,
)

pytestmark = [
    pytest.mark.parametrize("case", CASES, ids=lambda case: case.name),
    # Where a test takes no snapshot, Prox-SVRG says so.
    pytest.mark.filterwarnings("ignore:ProxSVRG.step without a snapshot"),
]


def groups(net: nn.Module, case: Case) -> list[dict[str, object]]:
    return rsprune.param_groups(net, lam=case.lam)


def test_makes_exact_zeros_and_lowers_the_loss(case: Case) -> None:
    net = small_net()
    optimizer = case(groups(net, case))
    first = loss_closure(net, optimizer, None)().item()
    train(net, optimizer, range(40))
    assert zeros(net) > 0
    assert loss_closure(net, optimizer, None)().item() < first


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_group_without_penalty_is_plain_sgd(case: Case, momentum: float) -> None:
    """lam = 0 gives torch's SGD, bit for bit, with weight decay and Nesterov momentum too."""
    settings = {"momentum": momentum, "nesterov": momentum > 0, "weight_decay": 1e-2}
    ours, theirs = small_net(), small_net()
    for net, optimizer in (
        (ours, case([{"params": ours.parameters(), "lam": 0.0}], **settings)),
        (theirs, torch.optim.SGD(theirs.parameters(), lr=0.1, **settings)),
    ):
        for step in range(6):  # without snapshots, which would reduce the variance of all groups
            optimizer.step(loss_closure(net, optimizer, step))
    assert_same_bits(weights(ours), weights(theirs))
    assert not torch.equal(weights(ours)[0], weights(small_net())[0])


def test_groups_have_their_own_rate_and_penalty(case: Case) -> None:
    net = small_net()
    own = [
        {"params": net[0].parameters(), "lam": 0.0, "lr": 0.0},
        {"params": net[4].parameters(), "lam": 50.0, "lr": 0.5},
    ]
    before = weights(net[0])
    train(net, case(own), range(12))
    assert_same_bits(before, weights(net[0]))
    assert zeros(net[4]) == sum(p.numel() for p in net[4].parameters())


def test_weight_decay_leaves_regularised_groups_alone(case: Case) -> None:
    plain, decayed = small_net(), small_net()
    train(plain, case(plain.parameters()), range(6))
    train(decayed, case(decayed.parameters(), weight_decay=0.5), range(6))
    assert_same_bits(weights(plain), weights(decayed))


def test_step_returns_the_closures_loss(case: Case) -> None:
    net = small_net()
    optimizer = case(groups(net, case))
    expected = loss_closure(copy.deepcopy(net), torch.optim.SGD(net.parameters()), 0)()
    assert optimizer.step(loss_closure(net, optimizer, 0)).item() == expected.item()


def test_step_without_closure_uses_the_gradients_and_returns_none(case: Case) -> None:
    with_closure, without = small_net(), small_net()
    one, two = case(groups(with_closure, case)), case(groups(without, case))
    for step in range(9):
        one.step(loss_closure(with_closure, one, step))
        loss_closure(without, two, step)()
        assert two.step() is None
    assert_same_bits(weights(with_closure), weights(without))


def test_schedulers_drive_the_rate(case: Case) -> None:
    """As setting the rate by hand does, and to an effect."""
    scheduled, by_hand, constant = small_net(), small_net(), small_net()
    one, two, three = (case(groups(net, case)) for net in (scheduled, by_hand, constant))
    schedule = torch.optim.lr_scheduler.StepLR(one, 1, gamma=0.5)
    for step in range(9):
        one.step(loss_closure(scheduled, one, step))
        schedule.step()
        two.step(loss_closure(by_hand, two, step))
        three.step(loss_closure(constant, three, step))
        for group in two.param_groups:
            group["lr"] *= 0.5
    assert_same_bits(weights(scheduled), weights(by_hand))
    assert any(
        not torch.equal(a, b) for a, b in zip(weights(scheduled), weights(constant), strict=True)
    )


def test_momentum_may_change_during_the_run(case: Case) -> None:
    """OneCycleLR moves it with the rate; a run may also begin without any."""
    net = small_net()
    optimizer = case(groups(net, case), momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=20)
    first = loss_closure(net, optimizer, None)().item()
    for step in range(19):
        optimizer.step(loss_closure(net, optimizer, step))
        schedule.step()
    assert loss_closure(net, optimizer, None)().item() < first
    late = small_net()
    optimizer = case(groups(late, case))
    train(late, optimizer, range(4))
    for group in optimizer.param_groups:
        group["momentum"] = 0.5
    train(late, optimizer, range(4, 8))
    assert "momentum_buffer" in optimizer.state[late[0].weight]


def test_penalty_may_come_and_go(case: Case) -> None:
    """Steps taken without a penalty are not undone when it comes back."""
    param = nn.Parameter(torch.full((4, 4), 0.5))
    optimizer = case([param], lam=1e-3)
    values = [0.5]
    for lam in (1e-3, 0.0, 1e-3):
        optimizer.param_groups[0]["lam"] = lam
        for _ in range(5):
            param.grad = torch.full((4, 4), 0.1)
            optimizer.step()
            values.append(param[0, 0].item())
    assert values == sorted(values, reverse=True)


def test_state_dict_before_the_first_step_changes_nothing(case: Case) -> None:
    """accelerate loads the state an optimizer has just given, before it has taken a step."""
    plain, reloaded = small_net(), small_net()
    one, two = case(groups(plain, case)), case(groups(reloaded, case))
    two.load_state_dict(two.state_dict())
    train(plain, one, range(12))
    train(reloaded, two, range(12))
    assert_same_bits(weights(plain), weights(reloaded))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_resume_across_phase_switches_is_bit_identical(case: Case, momentum: float) -> None:
    """Stop one step before, at and after each switch, reload from a file: the same bits."""
    whole = small_net()
    train(whole, case(groups(whole, case), momentum=momentum), range(14))
    for switch in case.phase_switches or (5,):
        for stop in (switch - 1, switch, switch + 1):
            net = small_net()
            optimizer = case(groups(net, case), momentum=momentum)
            train(net, optimizer, range(stop))
            file = io.BytesIO()
            torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, file)
            file.seek(0)
            saved = torch.load(file, weights_only=True)
            resumed = small_net()
            resumed.load_state_dict(saved["net"])
            optimizer = case(groups(resumed, case), momentum=momentum)
            optimizer.load_state_dict(saved["optimizer"])
            train(resumed, optimizer, range(stop, 14))
            assert_same_bits(weights(whole), weights(resumed))


def test_deepcopy_and_pickle_go_on_identically(case: Case) -> None:
    net = small_net()
    optimizer = case(groups(net, case), momentum=0.9)
    train(net, optimizer, range(5))
    copies = [
        copy.deepcopy((net, optimizer)),
        pickle.loads(pickle.dumps((net, optimizer))),
    ]
    train(net, optimizer, range(5, 12))
    for other_net, other in copies:
        train(other_net, other, range(5, 12))
        assert_same_bits(weights(net), weights(other_net))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("layout", ["channels_last", "transposed"])
def test_memory_layout_does_not_matter(case: Case, layout: str, momentum: float) -> None:
    torch.manual_seed(1)
    value, grads = torch.randn(6, 5, 3, 3), [torch.randn(6, 5, 3, 3) for _ in range(8)]

    def lay(tensor: torch.Tensor) -> torch.Tensor:
        if layout == "channels_last":
            return tensor.clone(memory_format=torch.channels_last)
        return tensor.transpose(0, 3).contiguous().transpose(0, 3)

    results = []
    for arrange in (torch.clone, lay):
        param = nn.Parameter(arrange(value))
        optimizer = case([param], momentum=momentum)
        for grad in grads:
            param.grad = arrange(grad)
            optimizer.step()
        results.append(param.detach())
    assert results[1].stride() != results[0].stride()
    tolerance = {"rtol": 1e-5, "atol": 1e-7} if case.name == "HSPG" else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(results[0], results[1].contiguous(), **tolerance)
    assert torch.equal(results[0] == 0, results[1] == 0)


def test_parameters_without_gradients_stay(case: Case) -> None:
    used, unused = nn.Parameter(torch.ones(3, 2)), nn.Parameter(torch.ones(3, 2))
    optimizer = case([used, unused], momentum=0.9)
    for _ in range(9):
        used.grad = torch.ones(3, 2)
        optimizer.step()
    assert torch.equal(unused, torch.ones(3, 2))
    assert not torch.equal(used, torch.ones(3, 2))
    unused.grad = torch.ones(3, 2)  # a late gradient is welcome
    optimizer.step()
    assert not torch.equal(unused, torch.ones(3, 2))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_other_precisions(case: Case, dtype: torch.dtype) -> None:
    """Parameters and state keep the precision; zeros appear; values stay near single precision."""
    single, other = small_net(), small_net(dtype)
    train(single, case(groups(single, case), momentum=0.5), range(10))
    optimizer = case(groups(other, case), momentum=0.5)
    train(other, optimizer, range(10))
    assert zeros(other) > 0
    assert all(p.dtype == dtype for p in other.parameters())
    buffers = [s["momentum_buffer"] for s in optimizer.state.values() if "momentum_buffer" in s]
    assert buffers
    assert all(b.dtype == dtype for b in buffers)
    if dtype == torch.float64:
        for a, b in zip(single.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-4)


def test_grad_scaler_skips_a_step_whole(case: Case) -> None:
    """A step that GradScaler leaves out counts for nothing: not for the phase either."""
    net, skipping = small_net(), small_net()
    plain, scaled = case(groups(net, case)), case(groups(skipping, case))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for step in range(9):
        plain.step(loss_closure(net, plain, step))
        x, y = batch(step)
        scaled.zero_grad()
        scaler.scale(nn.functional.cross_entropy(skipping(x), y)).backward()
        scaler.step(scaled)
        scaler.update()
        if step == 4:  # an overflow between two good steps; the forward pass is not repeated
            for param in skipping.parameters():
                param.grad = torch.full_like(param, float("inf"))
            counters = [group["steps_taken"] for group in scaled.param_groups]
            assert scaler.step(scaled) is None
            scaler.update()
            assert [group["steps_taken"] for group in scaled.param_groups] == counters
    for a, b in zip(weights(net), weights(skipping), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_construction_on_the_meta_device(case: Case) -> None:
    """Nothing is read at construction: meta parameters are fine, and can be filled in later."""
    with torch.device("meta"):
        net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Linear(4, 2))
    optimizer = case(groups(net, case), momentum=0.9)
    assert optimizer.state_dict()["state"] == {}
    optimizer.load_state_dict(optimizer.state_dict())
    torch.utils.swap_tensors(net[1].weight, nn.Parameter(torch.ones(2, 4)))
    net[1].weight.grad = torch.ones(2, 4)
    optimizer.step()
    assert not torch.equal(net[1].weight, torch.ones(2, 4))


def test_named_parameters(case: Case) -> None:
    named, plain = small_net(), small_net()
    optimizer = case(named.named_parameters())
    train(named, optimizer, range(6))
    train(plain, case(plain.parameters()), range(6))
    assert optimizer.param_groups[0]["param_names"][0] == "0.weight"
    assert_same_bits(weights(named), weights(plain))
    assert not torch.equal(weights(named)[0], weights(small_net())[0])
    case(optimizer.param_groups)  # groups of one optimizer can start another


def test_tensor_learning_rate(case: Case) -> None:
    floats, tensors = small_net(), small_net()
    train(floats, case(groups(floats, case), lr=0.125), range(6))
    train(tensors, case(groups(tensors, case), lr=torch.tensor(0.125)), range(6))
    assert_same_bits(weights(floats), weights(tensors))


def test_late_group_joins_the_phase_of_the_others(case: Case) -> None:
    net = small_net()
    optimizer = case([{"params": net[0].parameters()}])
    train(net, optimizer, range(6))
    optimizer.add_param_group({"params": net[4].parameters()})
    assert optimizer.param_groups[1]["steps_taken"] == 6
    train(net, optimizer, range(6, 9))


def test_sgd_state_can_be_loaded(case: Case) -> None:
    """A sparse run can take over SGD's momentum; settings SGD has not keep their values."""
    net = small_net()
    sgd = torch.optim.SGD(groups(net, case), lr=0.1, momentum=0.9)
    train(net, sgd, range(3))
    for group in sgd.param_groups:
        del group["lam"]
    optimizer = case(groups(net, case), lr=0.01, momentum=0.9)
    optimizer.load_state_dict(sgd.state_dict())
    assert [group["lam"] for group in optimizer.param_groups] == [case.lam, 0.0]
    assert optimizer.param_groups[0]["lr"] == 0.1
    weight = net[0].weight
    assert torch.equal(
        optimizer.state[weight]["momentum_buffer"], sgd.state[weight]["momentum_buffer"]
    )
    train(net, optimizer, range(3, 6))


def test_accelerate_prepares_it(case: Case) -> None:
    from accelerate import Accelerator

    plain, prepared = small_net(), small_net()
    one = case(groups(plain, case), momentum=0.9)
    accelerator = Accelerator(cpu=True)
    model, two = accelerator.prepare(prepared, case(groups(prepared, case), momentum=0.9))
    for step in range(12):
        loss_closure(plain, one, step)()
        one.step()
        x, y = batch(step)
        two.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model(x), y))
        two.step()
    assert_same_bits(weights(plain), weights(prepared))
    assert zeros(prepared) > 0


def test_state_is_the_momentum_buffer_and_what_the_method_must_remember(case: Case) -> None:
    needed = {
        "RDA": {"initial", "grad_sum", "count", "mean_penalty"},
        "ProxSVRG": {"reference", "full_grad"},
    }
    for momentum, buffers in ((0.0, set()), (0.9, {"momentum_buffer"})):
        net = small_net()
        optimizer = case([{"params": net.parameters()}], momentum=momentum)
        train(net, optimizer, range(8))
        for param in net.parameters():
            state = optimizer.state[param]
            assert set(state) == buffers | needed.get(case.name, set())
            tensors = [value for value in state.values() if isinstance(value, torch.Tensor)]
            assert all(value.shape == param.shape for value in tensors)


def test_hooks_run(case: Case) -> None:
    net = small_net()
    optimizer = case(groups(net, case))
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
    optimizer.register_step_post_hook(lambda *_: calls.append("post"))
    train(net, optimizer, range(1))
    assert calls == ["pre", "post"]


def test_hooks_run_once_without_a_closure(case: Case) -> None:
    net = small_net()
    case(groups(net, case))
    optimizer = case(groups(net, case))
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
    loss_closure(net, optimizer, 0)()
    optimizer.step()
    assert calls == ["pre"]


def test_no_warning_in_ordinary_use(case: Case) -> None:
    net = small_net()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RsPruneWarning)
        train(net, case(groups(net, case)), range(4))
