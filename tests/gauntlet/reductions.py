"""Sums, means and maxima: over space they are harmless, over channels hardly ever exact."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tests.gauntlet.registry import IMAGE, Net, conv, head, net

OVER_SPACE: dict[str, Callable[[Tensor], Tensor]] = {
    "mean_over_space": lambda x: x.mean((2, 3)),
    "mean_over_space_kept": lambda x: x.mean((2, 3), keepdim=True).flatten(1),
    "mean_over_space_from_the_end": lambda x: x.mean([-1, -2]),
    "sum_over_space": lambda x: x.sum((2, 3)) * 0.1,
    "maximum_over_space": lambda x: x.amax((2, 3)) + x.amin((2, 3)),
    "maximum_and_where": lambda x: x.flatten(2).max(-1).values,
    "standard_deviation_over_space": lambda x: x.std((2, 3)) + x.var((2, 3)),
    "length_over_space": lambda x: x.flatten(2).norm(dim=2),
    "log_sum_exp_over_space": lambda x: x.logsumexp((2, 3)),
    "product_over_rows": lambda x: x.tanh().prod(2).sum(2),
    "median_over_space": lambda x: x.flatten(2).median(-1).values,
    "top_two_over_space": lambda x: x.flatten(2).topk(2, -1).values.sum(-1),
}
# Rare operators may be unknown to the engine.
RARE = ("median_over_space", "top_two_over_space", "log_sum_exp_over_space", "product_over_rows")
for name, function in OVER_SPACE.items():
    required = {"either" if name in RARE else "prunable": "conv1"}

    @net(IMAGE, name=name, conv1=conv(3, 8), fc1=nn.Linear(8, 6), fc=nn.Linear(6, 5), **required)
    def over_space(m: Net, x: Tensor, reduce: Callable[[Tensor], Tensor] = function) -> Tensor:
        return m.fc(m.fc1(reduce(m.conv1(x))).relu())


FROZEN: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "mean_over_channels": ("mean", lambda x: x.mean(1, keepdim=True)),
    "mean_over_last_channels": ("mean", lambda x: x.permute(0, 2, 3, 1).mean(-1).unsqueeze(1)),
    "maximum_over_channels": ("max", lambda x: x.amax(1, keepdim=True)),
    "maximum_over_channels_and_where": ("max", lambda x: x.max(1, keepdim=True).values),
    "deviation_over_channels": ("std", lambda x: x.std(1, keepdim=True)),
}
for name, (operator, function) in FROZEN.items():

    @net(IMAGE, "conv2", frozen=f"conv1={operator}", name=name, conv1=conv(3, 8), conv2=conv(1, 6),
         head=head(6))  # fmt: skip
    def frozen_over_channels(
        m: Net, x: Tensor, reduce: Callable[[Tensor], Tensor] = function
    ) -> Tensor:
        return m.head(m.conv2(reduce(m.conv1(x))).relu())


DELICATE: dict[str, Callable[[Tensor], Tensor]] = {
    "sum_over_channels": lambda x: x.sum(1, keepdim=True),
    "sum_of_positives_over_channels": lambda x: x.relu().sum(1, keepdim=True),
    "sum_of_sigmoids_over_channels": lambda x: x.sigmoid().sum(1, keepdim=True),
    "sum_of_shifted_over_channels": lambda x: (x + 1).sum(1, keepdim=True),
    "sum_of_cosines_over_channels": lambda x: x.cos().sum(1, keepdim=True),
    "sum_of_gated_over_channels": lambda x: (x * x.sigmoid()).sum(1, keepdim=True),
    "sum_over_channels_then_mean_by_hand": lambda x: x.sum(1, keepdim=True) / x.shape[1],
    "length_over_channels": lambda x: x.norm(dim=1, keepdim=True),
    "maximum_of_positives_over_channels": lambda x: x.relu().amax(1, keepdim=True),
    "product_over_channels": lambda x: x.prod(1, keepdim=True),
    "log_sum_exp_over_channels": lambda x: x.logsumexp(1, keepdim=True),
    "any_over_channels": lambda x: (x > 0.5).any(1, keepdim=True).to(x.dtype),
    "sum_over_everything": lambda x: x.sigmoid().mean().expand(len(x), 1, 8, 8),
    "sum_over_channels_by_product": lambda x: (x.new_ones(1, x.shape[1]) @ x.cos().flatten(2)).view(
        -1, 1, 8, 8
    ),
}
for name, function in DELICATE.items():
    by_width = name == "sum_over_channels_then_mean_by_hand"

    @net(IMAGE, "conv2", either="conv1", literal=by_width, name=name, conv1=conv(3, 8),
         conv2=conv(1, 6), head=head(6))  # fmt: skip
    def delicate_over_channels(
        m: Net, x: Tensor, reduce: Callable[[Tensor], Tensor] = function
    ) -> Tensor:
        """Exact only where a dropped channel is zero, and adds nothing."""
        return m.head(m.conv2(reduce(m.conv1(x))).relu())


KEPT: dict[str, Callable[[Tensor], Tensor]] = {
    "cumulative_sum_over_channels": lambda x: x.cumsum(1) * 0.3,
    "cumulative_sum_of_sigmoids_over_channels": lambda x: x.sigmoid().cumsum(1) * 0.3,
    "cumulative_product_over_channels": lambda x: x.cumprod(1),
    "less_mean_over_channels": lambda x: x - x.mean(1, keepdim=True),
    "scaled_by_width": lambda x: x * x.shape[1] ** -0.5,
    "numbered_by_arange": lambda x: x + torch.arange(x.shape[1], dtype=x.dtype).view(-1, 1, 1),
    "encoded_by_linspace": lambda x: (
        x * torch.linspace(0, 1, x.shape[1], dtype=x.dtype).view(-1, 1, 1)
    ),
}
for name, function in KEPT.items():
    by_width = name == "scaled_by_width"

    @net(IMAGE, "conv2", either="conv1", literal=by_width, name=name, conv1=conv(3, 8),
         conv2=conv(8, 6), head=head(6))  # fmt: skip
    def mixed_over_channels(
        m: Net, x: Tensor, mix: Callable[[Tensor], Tensor] = function
    ) -> Tensor:
        """As many channels come out as went in, but each knows of the others or of its number."""
        return m.head(m.conv2(mix(m.conv1(x))).relu())


@net(IMAGE, "conv1", conv1=conv(3, 8), conv2=conv(8, 4))
def argmax_of_scores(m: Net, x: Tensor) -> Tensor:
    """Labels in evaluation, scores in training."""
    scores = m.conv2(m.conv1(x).relu())
    return scores if m.training else scores.argmax(1)


@net(
    IMAGE,
    "conv2",
    either="conv1",
    conv1=conv(3, 8),
    embed=nn.Embedding(8, 6),
    conv2=conv(6, 6),
    head=head(6),
)
def argmax_inside(m: Net, x: Tensor) -> Tensor:
    """A number of a channel, looked up in a table."""
    chosen = m.embed(m.conv1(x).argmax(1)).permute(0, 3, 1, 2)
    return m.head(m.conv2(chosen).relu())
