"""Silence for torch's exporter, which prints, logs and warns about its own inner life."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

_LOGGERS = ("torch", "torch.onnx", "torch.export", "torch._guards", "onnxscript", "onnx_ir")


@contextmanager
def quiet() -> Iterator[None]:
    """Without warnings, logs and prints; errors are raised as ever."""
    root = logging.getLogger()
    loggers = [root, *map(logging.getLogger, _LOGGERS)]  # onnxruntime's tools use the root
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    nobody = logging.NullHandler()  # else the first message would configure logging for good
    root.addHandler(nobody)
    try:
        with (
            warnings.catch_warnings(),
            redirect_stdout(io.StringIO()),
            redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        root.removeHandler(nobody)
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
