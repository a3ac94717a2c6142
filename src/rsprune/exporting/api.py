"""``rsprune.export``: a model as one file, which is only written if it computes the same."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rsprune.checks import check_choice
from rsprune.errors import ExportError, InvalidParameterError, TraceError
from rsprune.exporting.fold import fold as fold_norms
from rsprune.exporting.formats import Make, onnx_file, pt2_file, safetensors_file
from rsprune.exporting.int8 import calibration, quantise
from rsprune.exporting.metadata import describe
from rsprune.exporting.parity import check_parity, check_sanity, compare
from rsprune.files import check_writable, write_atomic
from rsprune.runtimes.batches import Inputs
from rsprune.runtimes.onnx import require_onnx, to_onnx
from rsprune.runtimes.program import capture
from rsprune.shadow import Arguments, check_model, evaluating, explain

FORMATS = ("onnx", "pt2", "safetensors")


@dataclass(frozen=True)
class Exported:
    """A file that was written; ``print`` shows it as a line.

    Attributes:
        path: where.
        format: onnx, pt2 or safetensors.
        size: in bytes.
        difference: the largest between the outputs of model and file, relative to the largest
            output.
        batches: the batch sizes on which they were compared.
        folded: the number of batch norms that were folded into the layer before them.
        agreement: of a quantised file: the share of example and calibration inputs to which model
            and file give the highest score for the same class.
        accuracy: what ``evaluate`` found for the model and for the file.
    """

    path: Path
    format: str
    size: int
    difference: float
    batches: tuple[int, ...]
    folded: int = 0
    agreement: float | None = None
    accuracy: tuple[float, float] | None = None

    def __str__(self) -> str:
        size = f"{self.size / 1e6:.2f} MB" if self.size >= 1e6 else f"{self.size / 1e3:.1f} kB"
        words = [f"{self.path}: {size}", f"outputs differ by {self.difference:.1e} at most"]
        if self.folded:
            words.append(f"{self.folded} batch norms folded")
        if self.agreement is not None:
            words.append(f"the same class for {self.agreement:.2%} of the inputs")
        if self.accuracy is not None:
            before, after = self.accuracy
            words.append(f"accuracy {before:.2%} before and {after:.2%} after")
        return ", ".join(words)


def export(
    model: nn.Module,
    example_inputs: Any,
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    fold: bool = False,
    int8: Iterable[Any] | None = None,
    full: nn.Module | None = None,
    evaluate: Callable[[Callable[..., Any]], float] | None = None,
    metadata: Mapping[str, str] | None = None,
    force: bool = False,
) -> Exported:
    """Write ``model``, in evaluation mode, to a file that takes batches of any size.

    The model stays as it was. The file is made in memory, loaded again and run on the example
    inputs and on a second batch size; it is only written if its outputs are those of the model,
    within 1e-4 of the largest.

    Args:
        model: any module that torch can export.
        example_inputs: a tensor; a tuple of positional arguments; a dict of keyword arguments;
            real ones, if possible. The first dimension of the first tensor is the batch, as is that
            of every other tensor of this size.
        path: the file to write.
        format: ``onnx``, ``pt2`` (a ``torch.export`` program) or ``safetensors`` (weights and
            widths, for :func:`rsprune.load`); by default what ``path`` ends in.
        fold: fold batch norms that follow a convolution or a linear layer directly into that layer;
            for ``onnx`` and ``pt2``.
        int8: batches of typical inputs, such as a few hundred training images, each as
            ``example_inputs``; the ONNX file is then quantised to 8 bits, and calibrated with them.
            Its outputs differ by more than 1e-4: the result says by how much, and how often the
            highest score is another; NaN and constant outputs are refused.
        full: for ``safetensors``, a full-size model into which the file is loaded to compare it; by
            default it is loaded into a copy of ``model``.
        evaluate: a function that takes what is called like the model and returns its accuracy on
            test data. It is applied to the model and to the file, whose accuracy goes into it.
        metadata: texts to put into the file, by name; those for rsprune's version and for what the
            model costs (``macs``, ``weights``, ``params``) are added.
        force: replace a file that is there already.

    Raises:
        TraceError: if the model raises.
        ExportError: if the model cannot be exported or the file computes something else.
        StorageError: if the file could not be written.
    """
    target = Path(path)
    kind = _format(target, format)
    check_model("export", model)
    _check_fit(kind, {"fold": fold, "int8": int8 is not None, "full": full is not None})
    inputs = Inputs("export", model, example_inputs)
    check_target(target, force)
    sizes = (inputs.batch, inputs.other)
    accuracy = None
    try:
        if kind == "onnx":
            require_onnx()
        batches = None if int8 is None else calibration(model, inputs, int8)
        with evaluating(model), torch.no_grad():
            output = _run(model, inputs.arguments)
            texts = describe(model, inputs, metadata)
            if batches is not None:
                texts["precision"] = "int8"
            make, folded = _maker(kind, model, inputs, output, batches, fold=fold, full=full)
            file = make(texts)
            compared = compare(model, file.run, [*map(inputs.of, sizes), *(batches or ())])
            if batches is None:
                check_parity(compared)
            else:
                check_sanity(compared)
            if evaluate is not None:
                accuracy = float(evaluate(model)), float(evaluate(file.run))
                file = make({**texts, "test_accuracy": json.dumps(accuracy[1])})
    except ExportError as error:
        raise ExportError(f"{error} Nothing was written.") from error
    write_atomic(target, file.data)
    agreement = None if batches is None else compared.agreement
    return Exported(
        target, kind, len(file.data), compared.difference, sizes, folded, agreement, accuracy
    )


def _format(target: Path, given: str | None) -> str:
    if given is not None:
        check_choice("export", "format", given, FORMATS)
        return given
    ending = target.suffix.removeprefix(".")
    if ending not in FORMATS:
        raise InvalidParameterError(
            "export", "path", f"a file that ends in {', '.join(f'.{name}' for name in FORMATS)}",
            str(target), "Or say which with format (--format).",
        )  # fmt: skip
    return ending


def _check_fit(kind: str, asked: Mapping[str, bool]) -> None:
    """Refuse what a format cannot do."""
    able = {"fold": ("onnx", "pt2"), "int8": ("onnx",), "full": ("safetensors",)}
    remedies = {
        "fold": "rsprune.load fills the model's own class, which has its batch norms.",
        "int8": "Quantisation is onnxruntime's.",
        "full": "Only such a file is loaded into a model.",
    }
    for name, wanted in asked.items():
        if wanted and kind not in able[name]:
            raise InvalidParameterError(
                "export", name, f"left out unless the format is {' or '.join(able[name])}", kind,
                remedies[name],
            )  # fmt: skip


def check_target(target: Path, force: bool) -> None:
    """Refuse a path that cannot be used, before the work."""
    if target.is_dir():
        raise InvalidParameterError(
            "export", "path", "a file", f"the directory '{target}'", "Name a file in it."
        )
    if not target.parent.is_dir():
        raise InvalidParameterError(
            "export", "path", "a file in a directory that exists", str(target), "Make it first."
        )
    if target.exists() and not force:
        raise ExportError(f"'{target}' exists already. Replace it with force=True (or --force).")
    check_writable(target)


def _run(model: nn.Module, arguments: Arguments) -> Any:
    """The model's output; what it raises is its own fault and no exporter's."""
    args, kwargs = arguments
    try:
        return model(*args, **kwargs)
    except Exception as error:
        raise TraceError(explain(error, model, arguments)) from error


def _maker(
    kind: str,
    model: nn.Module,
    inputs: Inputs,
    output: Any,
    batches: Sequence[Arguments] | None,
    *,
    fold: bool,
    full: nn.Module | None,
) -> tuple[Make, int]:
    """What makes the file, and how many batch norms are folded in it."""
    if kind == "safetensors":
        return safetensors_file(model, full), 0
    program, folded = capture(model, inputs), 0
    if fold or batches is not None:  # in 8 bits a norm of its own would only cost precision
        program, folded = fold_norms(program, inputs)
    if kind == "pt2":
        return pt2_file(program), folded
    data = to_onnx(program, inputs)
    if batches is not None:
        plain = onnx_file(data, output)({}).run  # a mistake here would pass for rounding later
        check_parity(compare(model, plain, [inputs.arguments]))
        data = quantise(data, batches)
    return onnx_file(data, output), folded
