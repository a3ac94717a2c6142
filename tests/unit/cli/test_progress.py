"""What is said of a stage where there is no terminal to draw a bar on."""

from __future__ import annotations

import pytest

pytest.importorskip("rich")

from rsprune.cli.progress import Display, make_console


@pytest.mark.parametrize(
    ("done", "compiles", "said"),
    [
        (0, False, "explore 1, lambda 0.001, 4 epochs"),
        (3, False, "explore 1, lambda 0.001, 4 epochs, 3 done"),
        (0, True, "explore 1, lambda 0.001, 4 epochs; compiling first, which takes a while"),
    ],
)
def test_a_stage_says_where_it_goes_on_and_why_it_waits(
    done: int, compiles: bool, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    stage = {"event": "stage", "stage": "explore", "round": 0, "epochs": 4, "lam": 1e-3}
    Display(make_console()).event({**stage, "done": done, "compiles": compiles})
    assert capsys.readouterr().out == f"{said}\n"
