"""Inputs and outputs of every form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tests.gauntlet.registry import IMAGE, Net, conv, head, net, sample


def pair(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    return sample(IMAGE, generator), sample((2, 7), generator)


def named(generator: torch.Generator) -> dict[str, Tensor]:
    image, context = pair(generator)
    return {"context": context, "image": image}


class TwoInputs(nn.Module):
    """An image and a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc, self.head = conv(3, 8), nn.Linear(7, 8), head(8)

    def forward(self, image: Tensor, context: Tensor, scale: float = 1.0) -> Tensor:
        features = self.conv(image) + self.fc(context)[:, :, None, None]
        return self.head(features.relu() * scale)


class DictInput(TwoInputs):
    """The same two, in one dict."""

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return super().forward(**batch)


class ListInput(TwoInputs):
    """The same two, in one list."""

    def forward(self, batch: list[Tensor]) -> Tensor:
        return super().forward(*batch)


net(pair, "conv fc", name="input_tuple")(TwoInputs)
net(named, "conv fc", name="input_keywords")(TwoInputs)
net(lambda g: (sample(IMAGE, g), sample((2, 7), g), 0.5), "conv fc", name="input_with_number")(
    TwoInputs
)
net(lambda g: {**named(g), "scale": 0.5}, "conv fc", name="input_keywords_with_number")(TwoInputs)
net(named, "conv fc", name="input_dict")(DictInput)
net(lambda g: (named(g),), "conv fc", name="input_tuple_of_dict")(DictInput)
net(lambda g: list(pair(g)), "conv fc", name="input_list")(ListInput)

BODY = {"conv1": conv(3, 8), "conv2": conv(8, 6), "head": head(6)}


@net(IMAGE, "conv1", frozen="conv2=", **BODY)
def output_tuple(m: Net, x: Tensor) -> tuple[Tensor, Tensor]:
    """Channels that go out stay."""
    features = m.conv2(m.conv1(x).relu())
    return m.head(features), features


@net(IMAGE, "conv1", frozen="conv2=", **BODY)
def output_dict(m: Net, x: Tensor) -> dict[str, Any]:
    features = m.conv2(m.conv1(x).relu())
    return {"scores": m.head(features), "levels": [features, None, 3]}


@dataclass
class Result:
    """An output with names."""

    scores: Tensor
    features: Tensor | None = None


@net(IMAGE, "conv1", frozen="conv2=", **BODY)
def output_dataclass(m: Net, x: Tensor) -> Result:
    features = m.conv2(m.conv1(x).relu())
    return Result(m.head(features), features)


class Named(NamedTuple):
    """An output with names and places."""

    scores: Tensor
    features: Tensor


@net(IMAGE, "conv1", frozen="conv2=", **BODY)
def output_named_tuple(m: Net, x: Tensor) -> Named:
    features = m.conv2(m.conv1(x).relu())
    return Named(m.head(features), features)


@net(IMAGE, "conv1", frozen="conv2=", **BODY)
def output_in_training_only(m: Net, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
    features = m.conv2(m.conv1(x).relu())
    return (m.head(features), features) if m.training else m.head(features)


@net(IMAGE, "conv1 conv2", **BODY)
def output_of_mean(m: Net, x: Tensor) -> tuple[Tensor, Tensor]:
    """A loss that the model computes itself."""
    scores = m.head(m.conv2(m.conv1(x).relu()))
    return scores, scores.logsumexp(1).mean()


@net(IMAGE, "conv2", frozen="conv1=", conv1=conv(3, 3), conv2=conv(3, 6), head=head(6))
def input_added(m: Net, x: Tensor) -> Tensor:
    """What is added to the input is as wide as the input."""
    return m.head(m.conv2((x + m.conv1(x)).relu()))
