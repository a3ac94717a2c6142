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


@pytest.mark.parametrize(("number", "than"), [(0, ""), (1, " than before it")])
def test_a_later_round_says_what_its_cut_is_compared_with(
    number: int, than: str, capsys: pytest.CaptureFixture[str]
) -> None:
    costs = {"before": {"macs": 300}, "after": {"macs": 150}}
    found = {"event": "round", "round": number, "sparsity": 0.5, "accuracy": 0.9}
    Display(make_console()).event({**found, **costs})
    assert capsys.readouterr().out.endswith(f"cut to 150 MACs, 2.00x fewer{than}\n")
