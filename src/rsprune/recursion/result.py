"""What a recursion returns: the model, and a history that prints as a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from rsprune.columns import aligned
from rsprune.ratios import compared


@dataclass(frozen=True)
class Size:
    """What a model costs, as :func:`rsprune.profile` counts it."""

    macs: int
    weights: int
    params: int


@dataclass(frozen=True)
class Width:
    """A channel group's width before and after a cut.

    Attributes:
        group: its name.
        size: its units before.
        width: its units after.
        sparsity: the share of zeros that decided it; None if it stays whole.
        driver: the layers whose sparsity that is, or why it stays whole.
    """

    group: str
    size: int
    width: int
    sparsity: float | None
    driver: str


@dataclass(frozen=True)
class Round:
    """One round: sparse training of M^t, and its cut to M^{t+1}.

    Attributes:
        round: t, from 0.
        lam: the penalty.
        sparsity: the share of zeros among the weights of convolution and linear layers.
        accuracy: on validation data, after sparse training; None if that diverged.
        before: the size of M^t.
        after: the size of M^{t+1}; None if the rounds ended without this cut.
        widths: how the groups were cut.
        finetuned: the accuracy of M^{t+1} after fine-tuning, if that was tried.
        diverged: how sparse training broke off; None if it did not.
        latency: the time that M^{t+1} takes, as a fraction of the given model's, if it has a
            target.
        spread: ``"cost"`` if the cut went by what a weight costs, else ``"even"``; None without a
            cut by the rule.
    """

    round: int
    lam: float
    sparsity: float | None
    accuracy: float | None
    before: Size
    after: Size | None = None
    widths: tuple[Width, ...] = ()
    finetuned: float | None = None
    diverged: str | None = None
    latency: float | None = None
    spread: str | None = None

    def event(self) -> dict[str, Any]:
        """The round as ``on_event`` reports it."""
        measured = {} if self.latency is None else {"latency": self.latency}
        spread = {} if self.spread is None else {"spread": self.spread}
        return {
            "event": "round",
            "round": self.round,
            "lam": self.lam,
            "sparsity": self.sparsity,
            "accuracy": self.accuracy,
            "before": asdict(self.before),
            "after": None if self.after is None else asdict(self.after),
            "widths": [
                {
                    "group": row.group,
                    "from": row.size,
                    "to": row.width,
                    "sparsity": row.sparsity,
                    "driver": row.driver,
                }
                for row in self.widths
            ],
            **spread,
            **measured,
        }


@dataclass(frozen=True)
class PruneResult:
    """The compressed model and how it came about; ``print`` shows it as a table.

    Attributes:
        model: the best model, fine-tuned.
        history: the rounds.
        baseline: the accuracy of the given model, on validation data.
        accuracy: the accuracy of ``model``, on validation data.
        best: the round, from 0, whose cut made ``model``; None if it is the given one.
        stopped: why the rounds ended, and what to know about the choice.
        before: the size of the given model.
        after: the size of ``model``.
    """

    model: nn.Module
    history: tuple[Round, ...]
    baseline: float
    accuracy: float
    best: int | None
    stopped: str
    before: Size
    after: Size

    def __str__(self) -> str:
        heads = ("round", "lambda", "sparsity", "accuracy", "MACs", "weights", "fine-tuned", "")
        rows = [heads, _row("given", None, None, self.baseline, self.before)]
        for one in self.history:
            number = str(one.round + 1)  # people count from 1
            rows.append(_row(number, one.lam, one.sparsity, one.accuracy, one.before))
            if one.after is not None:
                mark = "best" if one.round == self.best else ""
                rows.append(_row("  cut", None, None, None, one.after, one.finetuned, mark))
        table = aligned(rows, right=range(1, len(rows[0])))
        return "\n".join([table, f"stopped: {self.stopped}", self._summary()])

    def _summary(self) -> str:
        times = [one.latency for one in self.history if one.round == self.best]
        time = "".join(f"time {share:.1%}, " for share in times if share is not None)
        return (
            f"MACs {_ratio(self.before.macs, self.after.macs)}, "
            f"weights {_ratio(self.before.weights, self.after.weights)}, {time}"
            f"accuracy {self.baseline:.4f} -> {self.accuracy:.4f}"
        )


def _row(
    name: str,
    lam: float | None,
    sparsity: float | None,
    accuracy: float | None,
    size: Size,
    finetuned: float | None = None,
    mark: str = "",
) -> tuple[str, ...]:
    return (
        name,
        "" if lam is None else f"{lam:.3g}",
        "" if sparsity is None else f"{sparsity:.1%}",
        "" if accuracy is None else f"{accuracy:.4f}",
        f"{size.macs:,}",
        f"{size.weights:,}",
        "" if finetuned is None else f"{finetuned:.4f}",
        mark,
    )


def _ratio(before: int, after: int) -> str:
    return f"{before:,} -> {after:,} ({compared(before, after)})"
