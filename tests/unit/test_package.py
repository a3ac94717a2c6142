"""The package as a whole: public names, import cost, typing."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import files

import rsprune
import rsprune.optim


def test_public_names() -> None:
    assert set(rsprune.__all__) <= set(dir(rsprune))
    assert set(rsprune.optim.__all__) >= {"ProxSG", "OBProxSG", "RDA", "ProxSVRG", "HSPG"}
    assert files("rsprune").joinpath("py.typed").is_file()


def test_import_needs_torch_alone_and_little_time_of_its_own() -> None:
    """No compiler, no data libraries; the package itself adds at most a fifth of a second."""
    script = (
        "import sys, time, torch.optim\n"
        "start = time.perf_counter()\n"
        "import rsprune, rsprune.optim\n"
        "spent = time.perf_counter() - start\n"
        "heavy = {'sklearn', 'rich', 'accelerate', 'torch._inductor'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert spent < 0.2, spent\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
