"""The picture of docs/how-it-works.md: weights before and after sparse training, and the prior.

    python scripts/laplace.py RUN docs/images/laplace.svg

RUN is the directory of a run, not of a published one: the weights after exploring are in its state.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from pathlib import Path

import matplotlib
import matplotlib.figure
import numpy as np
from safetensors.torch import load_file

from rsprune.engine.events import EventLog
from rsprune.files import write_atomic


def weights(path: Path) -> np.ndarray:
    """All weights of layers, which are those with two dimensions or more."""
    tensors = load_file(path).values()
    return np.concatenate([t.flatten().numpy() for t in tensors if t.dim() > 1])


def main() -> None:
    """Draw it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path)
    parser.add_argument("picture", type=Path)
    options = parser.parse_args()
    log = EventLog(options.run / "events.jsonl")
    start = log.find("start")
    explored = options.run / "state" / "round-0.explored.safetensors"
    if start is None or not explored.exists():
        sys.exit(f"'{options.run}' is no run that has explored, or one without its state.")
    lam, images = start["recipe"]["explore"]["lam"], start["sizes"]["train"]
    before = weights(options.run / "state" / "baseline.safetensors")
    after = weights(explored)
    scale = 1 / (images * lam)
    zeros = (after == 0).mean()

    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "laplace"}  # text, same bytes
    canvas = matplotlib.figure.Figure((10, 4), layout="constrained")
    axes = canvas.subplots()
    edges = np.linspace(-0.3, 0.3, 121)
    look = {"density": True, "histtype": "step", "lw": 1.6}
    axes.hist(before, edges, color="#9aa3ad", label="weights before", **look)
    left = f"the {1 - zeros:.0%} that are not zero after exploring"
    axes.hist(after[after != 0], edges, color="#0f766e", label=left, **look)
    x = np.linspace(edges[0], edges[-1], 601)
    prior = np.exp(-np.abs(x) / scale) / (2 * scale)
    label = f"the prior, with lambda = {lam:g} and {images:,} images: b = {scale:.3f}"
    axes.plot(x, prior, color="#b45309", ls=":", lw=2, label=label)
    axes.set(yscale="log", ylim=(0.05, 60), xlim=(-0.3, 0.3), xlabel="weight", ylabel="density")
    axes.legend(frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    file = io.BytesIO()
    canvas.savefig(file, format="svg", metadata={"Date": None})
    write_atomic(options.picture, re.sub(rb"(\.\d\d)\d{3,}", rb"\1", file.getvalue()))


if __name__ == "__main__":
    main()
