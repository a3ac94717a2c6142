"""How the penalty lambda changes from round to round (Algorithm 1, line 5)."""

from __future__ import annotations

from rsprune.checks import check_choice

LAMBDA_RULES = ("paper", "constant", "inverse")


def next_penalty(rule: str, lam: float, *, before: int, after: int) -> float:
    """The penalty of the next round.

    The paper's formula scales lambda down with the model, while its text says "scale up"; the
    formula is the default, and the text's reading is the rule ``"inverse"``.

    Args:
        rule: ``"paper"``, lambda |M^{t+1}| / |M^t|; ``"constant"``, lambda; ``"inverse"``,
            lambda |M^t| / |M^{t+1}|.
        lam: the penalty of this round.
        before: |M^t|, the number of weights of the convolution and linear layers before the cut.
        after: |M^{t+1}|, their number after it.
    """
    check_choice("next_penalty", "lambda_rule", rule, LAMBDA_RULES)
    if rule == "paper":
        return lam * after / before  # Alg. 1, line 5
    if rule == "inverse":
        return lam * before / after
    return lam
