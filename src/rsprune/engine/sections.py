"""The tables of a recipe: every key with its type, range, default and meaning."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator

from rsprune.compression.widths import check_round_to

Share = Annotated[float, Field(gt=0, le=1)]


class Section(BaseModel):
    """A table of the recipe: unknown keys are mistakes, values do not change."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, protected_namespaces=()
    )


class Loading(Section):
    """How the data are read."""

    directory: str | None = Field(None, description="where the data are, if not in the cache")
    validation: float = Field(
        0.1, gt=0, lt=1, description="share of the training data that decides"
    )
    augment: Literal["auto", "none", "crop", "crop-flip"] = Field(
        "auto", description="random changes of training images"
    )
    normalise: Literal["auto", "imagenet", "none"] = Field(
        "auto", description="whose means and deviations scale the images"
    )
    size: int | None = Field(None, ge=8, description="height and width of image-folder images")
    workers: int | None = Field(None, ge=0, description="processes that read an image folder")


class Training(Section):
    """What every stage of training has."""

    epochs: int = Field(30, ge=0, description="passes over the training data")
    batch_size: int = Field(64, ge=1, description="images in a step")
    lr: float = Field(0.05, gt=0, description="the highest learning rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="of the optimizer")
    weight_decay: float = Field(5e-4, ge=0, description="of weights, not of biases and norms")
    schedule: Literal["cosine", "step", "one-cycle", "constant"] = Field(
        "cosine", description="how the learning rate changes"
    )
    warmup: float = Field(0.0, ge=0, lt=1, description="share of the steps in which it rises")
    milestones: tuple[Share, ...] = Field(
        (0.5, 0.75),
        strict=False,  # a list is one too
        description="shares of the run after which schedule=step lowers it",
    )
    gamma: float = Field(0.1, gt=0, le=1, description="by this factor")
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="of the cross-entropy")
    clip: float = Field(0.0, ge=0, description="the largest norm of the gradient; 0: any")


class Dense(Training):
    """Training by SGD."""

    ema: float = Field(0.0, ge=0, lt=1, description="decay of averaged weights; 0: none")
    small: Share = Field(
        1.0, description="side of images at first, as a share; the second half has full size"
    )


class Explore(Training):
    """Sparse training, line 3 of Algorithm 1."""

    epochs: int = Field(30, ge=1, description="passes over the training data")
    optimizer: Literal["obprox-sg", "prox-sg", "rda", "prox-svrg", "hspg"] = Field(
        "obprox-sg", description="the sparse optimizer"
    )
    lam: float = Field(1e-3, gt=0, description="lambda^0, the penalty; rsprune search-lambda helps")
    weight_decay: float = Field(0.0, ge=0, description="of biases and norms; weights have lam")
    prox_epochs: float = Field(5.0, ge=0, description="length of a proximal phase")
    orthant_epochs: float = Field(
        5.0, ge=0, description="length of an orthant phase (obprox-sg); 0: for good"
    )
    half_space: float = Field(0.0, ge=0, lt=1, description="epsilon of hspg's half-space test")
    dual_gamma: float = Field(20.0, gt=0, description="gamma of rda: larger moves more slowly")


def _multiple(value: object) -> object:
    check_round_to("recipe", value)
    return value


class Compress(Section):
    """From zeros to widths, Algorithms 2 and 3."""

    mode: Literal["ratio", "zero-groups"] = Field(
        "ratio", description="the paper's rule, or exactly the units that became zero"
    )
    epsilon: float = Field(0.1, ge=0, le=1, description="the least share of a width that stays")
    unit: Literal["auto", "layer", "block"] = Field("auto", description="whose sparsity counts")
    round_to: Annotated[int | str, PlainValidator(_multiple)] = Field(
        1, description="widths are multiples of it; auto measures which are fastest"
    )
    spread: Literal["auto", "even", "cost"] = Field(
        "auto",
        description="a target cuts all widths alike, or more where a weight costs more MACs; auto: "
        "by cost if residual blocks are cut once, to target_macs alone",
    )
    target_macs: Share | None = Field(None, description="share of the MACs that may stay")
    target_params: Share | None = Field(None, description="share of the parameters that may stay")
    target_latency: Share | None = Field(None, description="share of the time that may stay")
    runtime: Literal["torch", "compile", "onnxruntime"] = Field(
        "torch", description="in which times are measured for widths"
    )
    batch: int = Field(1, ge=1, description="for how many images at a time")
    threads: int | None = Field(
        None, ge=1, description="with how many threads; the run's if left out"
    )
    select: Literal["magnitude", "nonzeros", "thinet", "random"] = Field(
        "magnitude", description="which units survive"
    )
    inherit: bool = Field(True, description="whether the survivors keep their weights")


class Recursion(Section):
    """When Algorithm 1 goes on."""

    rounds: int = Field(1, ge=1, description="the most rounds of exploring and cutting")
    lambda_rule: Literal["paper", "constant", "inverse"] = Field(
        "paper", description="how lambda follows the size of the network"
    )
    tolerance: float = Field(
        0.02, ge=0, le=1, description="validation accuracy that may be lost on the way"
    )
    flat: float = Field(
        0.02, ge=0, le=1, description="change of sparsity and size below which rounds end"
    )


class Finetune(Dense):
    """The last stage of training."""

    lr: float = Field(0.02, gt=0, description="the highest learning rate")
    distill: float = Field(
        0.5, ge=0, le=1, description="weight of the original network's scores; 0: labels alone"
    )
    temperature: float = Field(4.0, gt=0, description="at which scores are compared")
    views: int = Field(
        0, ge=0, description="epochs after which batches and the teacher's scores repeat; 0: never"
    )
