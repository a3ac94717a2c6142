"""How lambda changes from round to round, case by case."""

from __future__ import annotations

from itertools import pairwise

import pytest

from rsprune.errors import InvalidParameterError
from rsprune.recursion import LAMBDA_RULES, next_penalty


@pytest.mark.parametrize(
    ("rule", "lam", "before", "after", "expected"),
    [
        ("paper", 1e-3, 1000, 250, 2.5e-4),  # |M^{t+1}| / |M^t| * lambda
        ("constant", 1e-3, 1000, 250, 1e-3),
        ("inverse", 1e-3, 1000, 250, 4e-3),
        ("paper", 1e-4, 15_239_872, 391_368, 1e-4 * 391_368 / 15_239_872),
    ],
)
def test_the_rules(rule: str, lam: float, before: int, after: int, expected: float) -> None:
    """Each rule is its formula."""
    assert next_penalty(rule, lam, before=before, after=after) == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("rule", LAMBDA_RULES)
def test_a_model_that_did_not_shrink_keeps_its_penalty(rule: str) -> None:
    assert next_penalty(rule, 0.003, before=77, after=77) == 0.003


def test_over_rounds_the_paper_rule_depends_on_the_first_and_last_size_alone() -> None:
    """The ratios telescope: lambda^t = |M^t| / |M^0| * lambda^0."""
    lam, sizes = 1e-2, [100_000, 31_000, 8_000, 7_900]
    for before, after in pairwise(sizes):
        lam = next_penalty("paper", lam, before=before, after=after)
    assert lam == pytest.approx(1e-2 * 7_900 / 100_000)


def test_an_unknown_rule_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(InvalidParameterError, match=r"'lambda_rule'.*Did you mean 'inverse'"):
        next_penalty("invers", 1e-3, before=2, after=1)
