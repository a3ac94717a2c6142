"""ready: every runtime computes what the model computes, and says what it lacks."""

from __future__ import annotations

import sys
from importlib import import_module

import pytest
import torch
from torch import Tensor, nn

from rsprune.errors import ExportError, InvalidParameterError, TraceError
from rsprune.runtimes.ready import RUNTIMES, Prepared, ready, torch_threads


class Net(nn.Module):
    """Convolution, norm, activation, product: in evaluation mode a function of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        assert not self.training
        return self.head(self.norm(self.conv(x)).relu().mean((2, 3)))


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


def outputs(found: object) -> Tensor:
    """What a call returned, of whichever runtime."""
    return found if isinstance(found, Tensor) else torch.as_tensor(found[0])  # type: ignore[index]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_it_computes_what_the_model_computes(
    net: nn.Module,
    runtime: str,
    fresh_compiler: None,  # noqa: ARG001
) -> None:
    """Again and again, without gradients, for the example and for other batches."""
    if runtime == "onnxruntime":
        pytest.importorskip("onnxscript")
    x = torch.randn(2, 1, 6, 6)
    program = Prepared("test", net, x, runtime)
    for batch in (None, 3) if runtime != "compile" else (None,):
        call = program.call(batch, threads=1)
        inputs = x if batch is None else x[[0, 1, 0]]
        for _ in range(2):
            found = outputs(call())
            assert not found.requires_grad
            torch.testing.assert_close(found, net(inputs).detach(), rtol=1e-4, atol=1e-5)


def test_more_shapes_than_torch_compiles_of_one_code(fresh_compiler: None) -> None:  # noqa: ARG001
    """Each call is compiled for itself; none falls back to running as it is."""
    from torch._dynamo import config
    from torch._dynamo.utils import counters

    counters.clear()
    model = nn.Linear(2, 2).eval()
    with config.patch(recompile_limit=2):
        for batch in range(1, 5):
            ready(model, torch.ones(batch, 2), "compile")()
    assert counters["stats"]["unique_graphs"] == 4


def test_without_a_compiler(net: nn.Module, fresh_compiler: None) -> None:  # noqa: ARG001
    """The error says what to install."""
    from torch._inductor import config

    with (
        config.patch({"cpp.cxx": ("no-such-compiler",)}),
        pytest.raises(TraceError, match=r"torch\.compile failed.*apt-get install g\+\+"),
    ):
        ready(net, torch.randn(1, 1, 6, 6), "compile")


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_without_a_package(net: nn.Module, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ExportError, match=r'pip install "rsprune\[export\]"'):
        ready(net, torch.randn(1, 1, 6, 6), "onnxruntime")


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_model_that_raises(net: nn.Module, runtime: str) -> None:
    """It is the model's fault in every runtime, and the error says where."""
    if runtime == "onnxruntime":
        pytest.importorskip("onnxscript")
    with pytest.raises(TraceError, match=r"Net failed on inputs of shape \(1, 2, 6, 6\).*'conv'"):
        ready(net, torch.randn(1, 2, 6, 6), runtime)


def test_a_runtime_that_does_not_exist(net: nn.Module) -> None:
    with pytest.raises(InvalidParameterError, match="Did you mean 'onnxruntime'"):
        ready(net, torch.randn(1, 1, 6, 6), "onnx-runtime")


def test_threads_of_torch_are_restored() -> None:
    before = torch.get_num_threads()
    with torch_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
    with torch_threads(None):
        assert torch.get_num_threads() == before


def test_threads_of_onnxruntime() -> None:
    """A session has as many as it is told."""
    onnx = pytest.importorskip("onnx")
    from rsprune.runtimes.onnx import Session

    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["y"])], "graph",
        [value("x", onnx.TensorProto.FLOAT, [2])], [value("y", onnx.TensorProto.FLOAT, [2])],
    )  # fmt: skip
    model = onnx.helper.make_model(
        graph, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 18)]
    )
    session = Session(model.SerializeToString(), threads=3, arena=False)
    options = session._session.get_session_options()
    assert (options.intra_op_num_threads, options.enable_cpu_mem_arena) == (3, False)
    assert session(torch.tensor([-1.0, 2.0]))[0].tolist() == [0.0, 2.0]
    assert import_module("onnxruntime").SessionOptions().enable_cpu_mem_arena  # its usual way
