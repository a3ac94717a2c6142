"""The optimizers equal their slow references, step by step, in parameters and state."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import rsprune
from rsprune.errors import RsPruneWarning
from rsprune.optim import HSPG, RDA, OBProxSG, ProxSG, ProxSVRG, _run
from tests.optimizers import CASES, Case, assert_same_bits, small_net, train, weights
from tests.reference.masked import MaskedOBProxSG
from tests.reference.others import ReferenceHSPG, ReferenceProxSVRG, ReferenceRDA

FORMS = {"literal": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
DTYPES = (torch.float32, torch.float64)


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest, fresh_compiler: None) -> dict[str, bool]:  # noqa: ARG001
    return FORMS[request.param]


def noisy_gradient(w: Tensor, generator: torch.Generator) -> Tensor:
    """Of a quadratic around 0.1, so that some weights cross zero, some rest there."""
    noise = torch.randn(w.shape, generator=generator, dtype=w.dtype)
    return (w - 0.1) * 0.5 + 0.3 * noise


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
@pytest.mark.parametrize(("prox", "orthant"), [(10**6, None), (7, 5), (4, None), (0, None)])
def test_obprox_sg_equals_its_masked_reference_bit_for_bit(
    form: dict[str, bool],
    prox: int,
    orthant: int | None,
    momentum: float,
    nesterov: bool,
    dtype: torch.dtype,
) -> None:
    """Values, zeros and momentum, through several phases; prox for ever is Prox-SG."""
    settings = {"lr": 0.05, "lam": 0.1, "momentum": momentum, "nesterov": nesterov}
    start = torch.randn(37, 5, generator=torch.Generator().manual_seed(0), dtype=dtype)
    ours, theirs, third = (nn.Parameter(start.clone()) for _ in range(3))
    phases: dict[str, Any] = {"prox_steps": prox, "orthant_steps": orthant}
    optimizer = OBProxSG([ours], **settings, **phases, **form)
    reference = MaskedOBProxSG([theirs], **settings, **phases)
    prox_sg = ProxSG([third], **settings, **form)
    generator = torch.Generator().manual_seed(1)
    seen_zeros = False
    for step in range(40):
        grad = noisy_gradient(theirs.detach(), generator)
        ours.grad, theirs.grad, third.grad = grad, grad.clone(), grad.clone()
        optimizer.step()
        reference.step()
        assert torch.equal(ours, theirs), step
        if momentum:
            assert torch.equal(
                optimizer.state[ours]["momentum_buffer"],
                reference.state[theirs]["momentum_buffer"],
            ), step
        if prox == 10**6:
            prox_sg.step()
            assert torch.equal(third, theirs), step
        seen_zeros |= bool((ours == 0).any())
    assert seen_zeros


def test_forgotten_momentum_of_the_tiniest_weights() -> None:
    """Subnormal weights are weights too."""
    for dtype, tiny in ((torch.float32, 1e-39), (torch.float64, 1e-310)):
        w = nn.Parameter(torch.tensor([tiny, 0.0], dtype=dtype))
        optimizer = ProxSG([w], lr=0.1, lam=1.0, momentum=0.9)
        w.grad = torch.full((2,), 0.1, dtype=dtype)
        optimizer.step()
        buffer = optimizer.state[w]["momentum_buffer"]
        assert (w == 0).all()
        assert buffer[0] == 0
        assert buffer[1] != 0


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rda_equals_its_reference_bit_for_bit(form: dict[str, bool], dtype: torch.dtype) -> None:
    start = torch.randn(50, generator=torch.Generator().manual_seed(0), dtype=dtype)
    w = nn.Parameter(start.clone())
    optimizer = RDA([w], lam=0.3, gamma=4.0, **form)
    reference = ReferenceRDA(start, lam=0.3, gamma=4.0)
    generator = torch.Generator().manual_seed(1)
    for _ in range(30):
        w.grad = noisy_gradient(reference.w, generator)
        reference.step(w.grad)
        optimizer.step()
        assert torch.equal(w, reference.w)
    assert 0 < int((w == 0).sum()) < 50


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_prox_svrg_equals_its_reference_bit_for_bit(
    form: dict[str, bool], dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 20, generator=generator, dtype=dtype)
    y = torch.randn(60, generator=generator, dtype=dtype)
    w = nn.Parameter(torch.zeros(20, dtype=dtype))
    optimizer = ProxSVRG([w], lr=0.1, lam=0.05, **form)
    reference = ReferenceProxSVRG(w.detach().clone(), lr=0.1, lam=0.05)

    def grad(rows: slice, at: Tensor) -> Tensor:
        return x[rows].t() @ (x[rows] @ at - y[rows]) / len(x[rows])

    def closure(rows: slice) -> Callable[[], float]:
        def set_gradient() -> float:
            w.grad = grad(rows, w.detach())
            return 1.5

        return set_gradient

    for _ in range(5):
        optimizer.snapshot(closure(slice(None)))
        assert w.grad is None
        reference.snapshot(grad(slice(None), reference.w))
        for start in range(0, 60, 12):
            rows = slice(start, start + 12)
            at_w = grad(rows, reference.w)
            reference.step(at_w, grad(rows, reference.reference))
            assert optimizer.step(closure(rows)) == 1.5
            assert torch.equal(w, reference.w)
            assert torch.equal(w.grad, at_w)  # the user's gradient is left in place
    assert 0 < int((w == 0).sum()) < 20


@pytest.mark.parametrize("eps", [0.0, 0.5])
def test_hspg_equals_its_reference(form: dict[str, bool], eps: float) -> None:
    """Groups across two parameters, along different dims, with slices that are in no group."""
    generator = torch.Generator().manual_seed(0)
    a = nn.Parameter(torch.randn(6, 4, generator=generator, dtype=torch.float64))
    b = nn.Parameter(torch.randn(3, 6, generator=generator, dtype=torch.float64))
    groups = [[(a, 0, i), (b, 1, i)] for i in range(5)]  # row 5 of a, column 5 of b: in no group
    flat_groups = [
        [i * 4 + j for j in range(4)] + [24 + r * 6 + i for r in range(3)] for i in range(5)
    ]
    start = torch.cat([a.detach().flatten(), b.detach().flatten()])
    reference = ReferenceHSPG(start, flat_groups, lr=0.05, lam=1.0, prox=6, eps=eps)
    optimizer = HSPG([a, b], lr=0.05, lam=1.0, prox_steps=6, eps=eps, groups=groups, **form)
    for _ in range(40):
        grad = noisy_gradient(reference.x, generator)
        reference.step(grad)
        a.grad, b.grad = grad[:24].view(6, 4), grad[24:].view(3, 6)
        optimizer.step()
        ours = torch.cat([a.detach().flatten(), b.detach().flatten()])
        torch.testing.assert_close(ours, reference.x, rtol=1e-9, atol=1e-12)
        assert torch.equal(ours == 0, reference.x == 0)
    assert 0 < int((a == 0).all(1).sum()) < 6


@pytest.mark.filterwarnings("ignore:ProxSVRG.step without a snapshot")
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_all_forms_give_the_same_zeros_and_values(
    case: Case,
    momentum: float,
    nesterov: bool,
    fresh_compiler: None,  # noqa: ARG001
) -> None:
    """On a network, bit for bit; HSPG's sums, compiled in another order, agree to rounding."""
    results = {}
    for name, form in FORMS.items():
        net = small_net()
        groups = rsprune.param_groups(net, lam=case.lam)
        settings = {"momentum": momentum, "nesterov": nesterov, "lr": 0.02 if momentum else 0.1}
        train(net, case(groups, **settings, **form), range(12))
        results[name] = weights(net)
    assert_same_bits(results["literal"], results["foreach"])
    assert any((tensor == 0).any() for tensor in results["literal"])
    if case.cls is not HSPG:
        assert_same_bits(results["literal"], results["fused"])
    for a, b in zip(results["literal"], results["fused"], strict=True):
        assert torch.equal(a == 0, b == 0)
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore:ProxSVRG.step without a snapshot")
@pytest.mark.parametrize("case", [c for c in CASES if c.cls is not HSPG], ids=lambda c: c.name)
def test_blocks_do_not_show(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cutting a tensor into blocks, with a shorter last one, changes no bit."""
    results = []
    for block in (1 << 19, 100):
        monkeypatch.setattr(_run, "BLOCK", block)
        param = nn.Parameter(torch.linspace(-1, 1, 730).view(73, 10))
        optimizer = case([param], momentum=0.9)
        generator = torch.Generator().manual_seed(0)
        for _ in range(9):
            param.grad = torch.randn(73, 10, generator=generator)
            optimizer.step()
        results.append([param.detach(), optimizer.state[param]["momentum_buffer"]])
    assert_same_bits(*results)


def test_fused_keeps_one_graph_when_the_rate_changes(fresh_compiler: None) -> None:  # noqa: ARG001
    def graphs() -> int:
        return torch._dynamo.utils.counters["stats"]["unique_graphs"]

    before = graphs()
    w = nn.Parameter(torch.randn(10))
    optimizer = OBProxSG([w], lr=0.1, momentum=0.9, prox_steps=3, fused=True)
    for step in range(12):
        w.grad = torch.randn(10)
        optimizer.param_groups[0]["lr"] = 0.1 / (1 + step)
        optimizer.step()
    assert graphs() - before == 2  # one a phase


@pytest.mark.filterwarnings("ignore:ProxSVRG.step without a snapshot")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_forms_agree_in_half_precision(case: Case, momentum: float, dtype: torch.dtype) -> None:
    results = []
    for foreach in (False, True):
        generator = torch.Generator().manual_seed(0)
        param = nn.Parameter(torch.randn(40, 10, generator=generator).to(dtype) * 0.1)
        optimizer = case([param], momentum=momentum, foreach=foreach)
        for _ in range(10):
            param.grad = torch.randn(40, 10, generator=generator).to(dtype) * 0.2
            optimizer.step()
        results.append([param.detach()])
    assert_same_bits(*results)
    assert (results[0][0] == 0).any()


def test_half_precision_with_fused_uses_the_in_place_form() -> None:
    results = []
    for form in ({}, {"fused": True}):
        w = nn.Parameter(torch.linspace(-1, 1, 32).bfloat16())
        optimizer = ProxSG([w], lr=0.1, lam=0.1, **form)
        w.grad = torch.ones_like(w)
        optimizer.step()
        results.append(w.detach())
    assert torch.equal(*results)


def test_fused_with_more_shapes_than_graphs(
    monkeypatch: pytest.MonkeyPatch,
    fresh_compiler: None,  # noqa: ARG001
) -> None:
    """Past the number of graphs torch keeps, the step is taken whole, the fast way, with a word."""
    monkeypatch.setattr(_run, "GRAPHS", 2)
    for cached in (_run._compile, _run._warn_once):
        cached.cache_clear()
    results = []
    for form in ({}, {"fused": True}):
        params = [nn.Parameter(torch.linspace(-1, 1, size)) for size in range(3, 8)]
        optimizer = ProxSG([{"params": [p]} for p in params], lr=0.1, lam=0.5, **form)
        for _ in range(2):
            for param in params:
                param.grad = torch.ones_like(param)
            if form and optimizer.param_groups[0]["steps_taken"] == 0:
                with pytest.warns(RsPruneWarning, match="2 graphs are compiled"):
                    optimizer.step()
            else:
                optimizer.step()
        results.append([param.detach() for param in params])
    _run._compile.cache_clear()
    assert_same_bits(*results)


def test_fused_without_a_compiler_falls_back_with_one_warning() -> None:
    """In a process of its own, where no C++ compiler is found."""
    script = """
        import time, warnings, torch
        from rsprune.optim import OBProxSG
        from rsprune.errors import RsPruneWarning
        results = []
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for fused in (True, False):
                torch.manual_seed(0)
                w = torch.nn.Parameter(torch.randn(20))
                optimizer = OBProxSG([w], lr=0.1, lam=0.1, prox_steps=2, fused=fused)
                for _ in range(6):
                    w.grad = torch.randn(20)
                    optimizer.step()
                results.append(w.detach().clone())
        start = time.perf_counter()
        for _ in range(20):
            optimizer = OBProxSG([w], lr=0.1, fused=True)
            optimizer.step()
        assert time.perf_counter() - start < 1, "it tries to compile at every step"
        ours = [w for w in seen if issubclass(w.category, RsPruneWarning)]
        assert len(ours) == 1, ours
        assert "compiler" in str(ours[0].message)
        assert torch.equal(*results)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={"CXX": "no-such-compiler", "PATH": "", "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


# -- RDA and Prox-SVRG where gradients come and go ------------------------------------------------


def test_rda_counts_the_steps_of_each_parameter() -> None:
    """A parameter that joins late starts like one that joined at once."""
    early, late = (nn.Parameter(torch.full((3,), 0.5)) for _ in range(2))
    optimizer = RDA([early, late], lam=0.01, gamma=2.0)
    first = []
    for step in range(60):
        early.grad = torch.full((3,), 0.1)
        late.grad = torch.full((3,), 0.1) if step >= 50 else None
        optimizer.step()
        first.append(early[0].item())
    assert late[0].item() == first[9]


def test_rda_uses_the_mean_penalty_where_momentum_changes() -> None:
    """|grad| = 2 lam keeps a weight away from zero whatever the momentum does."""
    w = nn.Parameter(torch.zeros(3))
    optimizer = RDA([w], lam=0.01, gamma=1.0, momentum=0.5)
    for step in range(400):
        optimizer.param_groups[0]["momentum"] = 0.5 if step < 200 else 0.95
        w.grad = torch.full((3,), -0.02)
        optimizer.step()
        assert step < 5 or (w != 0).all()


def test_rda_in_half_precision_does_not_stall_and_resumes_exactly() -> None:
    def steps(w: nn.Parameter, optimizer: RDA, count: int) -> None:
        for _ in range(count):
            w.grad = torch.ones_like(w)
            optimizer.step()

    whole = nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    steps(whole, RDA([whole], lam=1e-3, gamma=1.0), 2000)
    assert whole[0].item() == pytest.approx(-44.6, rel=0.02)
    resumed = nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    optimizer = RDA([resumed], lam=1e-3, gamma=1.0)
    steps(resumed, optimizer, 1000)
    other = RDA([resumed], lam=1e-3, gamma=1.0)
    other.load_state_dict(optimizer.state_dict())
    assert other.state[resumed]["grad_sum"].dtype == torch.float32
    steps(resumed, other, 1000)
    assert torch.equal(whole, resumed)


class Quadratic:
    """Two parameters, a and b, each pulled to a target by full gradients."""

    def __init__(self) -> None:
        self.a, self.b = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
        self.optimizer = ProxSVRG([self.a, self.b], lr=0.5, lam=1e-6)
        self.with_b = True
        self.fail_at: int | None = None
        self.calls = 0

    def closure(self) -> float:
        self.calls += 1
        if self.calls == self.fail_at:
            raise RuntimeError("data ran out")
        self.optimizer.zero_grad()
        loss = (self.a - 1).square().sum()
        if self.with_b:
            loss = loss + (self.b - 1).square().sum()
        loss.backward()
        return loss.item()


def test_prox_svrg_drops_the_reference_of_a_parameter_without_gradient() -> None:
    """With full gradients every step is the plain one; an old reference would bend it."""
    problem = Quadratic()
    problem.optimizer.snapshot(problem.closure)
    problem.optimizer.step(problem.closure)
    problem.with_b = False
    problem.optimizer.snapshot(problem.closure)
    assert "reference" not in problem.optimizer.state[problem.b]
    problem.with_b = True
    problem.optimizer.step(problem.closure)
    problem.optimizer.step(problem.closure)
    assert problem.b.detach() == pytest.approx(torch.ones(2), abs=1e-4)


def test_prox_svrg_leaves_weights_and_gradients_where_the_closure_fails() -> None:
    problem = Quadratic()
    problem.optimizer.snapshot(problem.closure)
    with torch.no_grad():
        problem.a.fill_(0.25)
    problem.fail_at = problem.calls + 2
    state = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="data ran out"):
        problem.optimizer.step(problem.closure)
    assert torch.equal(problem.a, torch.full((2,), 0.25))
    assert torch.equal(problem.a.grad, torch.full((2,), -1.5))
    assert torch.equal(torch.get_rng_state(), state)


def test_prox_svrg_repeats_dropout_masks() -> None:
    """Both calls of a step see the same mask: at the reference point the gradients cancel."""
    w = nn.Parameter(torch.ones(50))
    optimizer = ProxSVRG([w], lr=0.1, lam=1e-9)

    def closure() -> float:
        optimizer.zero_grad()
        loss = nn.functional.dropout(w, 0.5).sum()
        loss.backward()
        return loss.item()

    def full() -> float:
        w.grad = torch.ones(50)
        return 0.0

    optimizer.snapshot(full)
    optimizer.step(closure)
    assert w.detach() == pytest.approx(torch.full((50,), 0.9))


def test_prox_svrg_refuses_a_snapshot_it_cannot_use() -> None:
    w = nn.Parameter(torch.ones(3))
    optimizer = ProxSVRG([w], on_nonfinite="raise")

    def full() -> float:
        w.grad = torch.full((3,), torch.inf)
        return 0.0

    with pytest.raises(rsprune.GradientError, match="NaN or infinity"):
        optimizer.snapshot(full)
    assert "reference" not in optimizer.state.get(w, {})
