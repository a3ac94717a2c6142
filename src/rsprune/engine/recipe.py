"""The recipe of a run: what to train, how, and what to make of it. TOML in, TOML out.

Every mistake of a recipe is reported at once, with its file, key, range, value and remedy.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from rsprune.errors import RecipeError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RATIO_ONLY = ("epsilon", "unit", "round_to", "target_macs", "target_params")
Share = Annotated[float, Field(gt=0, le=1)]


class Section(BaseModel):
    """A table of the recipe: unknown keys are mistakes, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


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
    weight_decay: float = Field(5e-4, ge=0, description="of the optimizer")
    schedule: Literal["cosine", "step", "one-cycle", "constant"] = Field(
        "cosine", description="how the learning rate changes"
    )
    warmup: float = Field(0.0, ge=0, lt=1, description="share of the steps in which it rises")
    milestones: tuple[Share, ...] = Field(
        (0.5, 0.75), description="shares of the run after which schedule=step lowers it"
    )
    gamma: float = Field(0.1, gt=0, le=1, description="by this factor")
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="of the cross-entropy")
    clip: float = Field(0.0, ge=0, description="the largest norm of the gradient; 0: any")


class Dense(Training):
    """Training by SGD."""

    ema: float = Field(0.0, ge=0, lt=1, description="decay of averaged weights; 0: none")


class Explore(Training):
    """Sparse training, line 3 of Algorithm 1."""

    optimizer: Literal["obprox-sg", "prox-sg", "rda", "prox-svrg", "hspg"] = Field(
        "obprox-sg", description="the sparse optimizer"
    )
    lam: float = Field(1e-3, gt=0, description="lambda^0, the penalty; rsprune search-lambda helps")
    weight_decay: float = Field(0.0, ge=0, description="of the optimizer")
    prox_epochs: float = Field(5.0, ge=0, description="length of a proximal phase")
    orthant_epochs: float = Field(
        5.0, ge=0, description="length of an orthant phase (obprox-sg); 0: for good"
    )
    half_space: float = Field(0.0, ge=0, lt=1, description="epsilon of hspg's half-space test")
    dual_gamma: float = Field(20.0, gt=0, description="gamma of rda: larger moves more slowly")


class Compress(Section):
    """From zeros to widths, Algorithms 2 and 3."""

    mode: Literal["ratio", "zero-groups"] = Field(
        "ratio", description="the paper's rule, or exactly the units that became zero"
    )
    epsilon: float = Field(0.1, ge=0, le=1, description="the least share of a width that stays")
    unit: Literal["auto", "layer", "block"] = Field("auto", description="whose sparsity counts")
    round_to: int = Field(1, ge=1, description="widths are multiples of it")
    target_macs: Share | None = Field(None, description="share of the MACs that may stay")
    target_params: Share | None = Field(None, description="share of the parameters that may stay")
    select: Literal["magnitude", "nonzeros", "thinet"] = Field(
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


class Finetune(Dense):
    """The last stage of training."""

    lr: float = Field(0.02, gt=0, description="the highest learning rate")
    distill: float = Field(0.0, ge=0, le=1, description="weight of the original network's scores")
    temperature: float = Field(4.0, gt=0, description="at which scores are compared")


class Recipe(Section):
    """All settings of a run."""

    model: str = Field("small_cnn", description="vgg16, resnet50, ..., timm:NAME, package:factory")
    model_options: dict[str, Any] = Field({}, description="keyword arguments of the model")
    weights: str | None = Field(None, description="trained weights, instead of a baseline stage")
    data: str = Field("digits", description="digits, cifar10, imagefolder:DIR, package:factory")
    seed: int = Field(0, ge=0, lt=2**31, description="of everything that is random")
    threads: int | None = Field(None, ge=1, description="CPU threads; None: all")
    device: Literal["auto", "cpu"] = Field("auto", description="auto takes a GPU if there is one")
    precision: Literal["no", "bf16", "fp16"] = Field("no", description="mixed precision")
    channels_last: bool = Field(False, description="memory layout of images and filters")
    compile: bool = Field(False, description="train through torch.compile")
    onnx: bool = Field(True, description="whether to write model.onnx at the end")
    checkpoint_minutes: float = Field(5.0, gt=0, description="between checkpoints within an epoch")
    loading: Loading = Loading()  # type: ignore[call-arg]
    baseline: Dense = Dense()  # type: ignore[call-arg]
    explore: Explore = Explore()  # type: ignore[call-arg]
    compress: Compress = Compress()  # type: ignore[call-arg]
    recursion: Recursion = Recursion()  # type: ignore[call-arg]
    finetune: Finetune = Finetune()  # type: ignore[call-arg]

    @model_validator(mode="after")
    def _fits_together(self) -> Recipe:
        usual = Compress()  # type: ignore[call-arg]
        given = [k for k in RATIO_ONLY if getattr(self.compress, k) != getattr(usual, k)]
        if self.compress.mode == "zero-groups" and given:
            raise ValueError(
                f"compress.{given[0]} has no meaning with compress.mode = 'zero-groups', which "
                "removes exactly the units that are zero. Leave it out, or use mode = 'ratio'."
            )
        if self.compress.mode == "zero-groups" and self.explore.optimizer != "hspg":
            raise ValueError(
                "compress.mode = 'zero-groups' needs whole units that are zero, which only "
                "explore.optimizer = 'hspg' makes."
            )
        return self

    def to_toml(self) -> str:
        """The recipe with every default written out."""
        return tomli_w.dumps(_without_none(self.model_dump(mode="json")))


def read_recipe(path: Path | None, options: Mapping[str, str] | None = None) -> Recipe:
    """The recipe in a TOML file (or the defaults), with options such as ``explore.lam`` on top.

    Raises:
        RecipeError: with every mistake at once.
    """
    values = _parsed(path) if path else {}
    where = str(path) if path else "recipe"
    keys = dict(recipe_keys())
    problems = []
    sources: dict[str, str] = {}  # of keys that are options
    for name, text in (options or {}).items():
        key = name.replace("-", "_")
        if key not in keys and not key.startswith("model_options."):
            problems.append(f"--{name}: unknown option. {_suggest(key, keys)}".rstrip())
            continue
        _put(values, key.split("."), _option_value(text))
        sources[key] = f"--{name}"
    try:
        recipe = Recipe.model_validate(values)
    except ValidationError as error:
        problems += [_problem(where, sources, found, keys) for found in error.errors()]
    if problems:
        raise RecipeError(problems)
    return recipe


def recipe_keys(
    section: type[BaseModel] = Recipe, prefix: str = ""
) -> Iterator[tuple[str, FieldInfo]]:
    """Every key of a recipe with its field, as ``explore.lam``."""
    for name, field in section.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Section):
            yield from recipe_keys(inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def _parsed(path: Path) -> dict[str, Any]:
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise RecipeError([f"{path}: there is no such file."]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError([f"{path}: cannot be read: {error}."]) from error
    except tomllib.TOMLDecodeError as error:
        raise RecipeError([f"{path}: is no TOML: {error}."]) from error
    return values


def _put(values: dict[str, Any], path: list[str], value: Any) -> None:
    for part in path[:-1]:
        inner = values.setdefault(part, {})
        if not isinstance(inner, dict):  # which the validation reports
            return
        values = inner
    values[path[-1]] = value


def _option_value(text: str) -> Any:
    """An option's text as TOML would read it; what is no TOML value is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return None if text.lower() == "none" else text


def _problem(
    file: str, sources: Mapping[str, str], found: Any, keys: Mapping[str, FieldInfo]
) -> str:
    """One mistake in a line: where, what is allowed, what was given, and a remedy."""
    key = ".".join(str(part) for part in found["loc"])
    where = sources.get(key, f"{file}: {key}" if key else file)
    if found["type"] == "extra_forbidden":
        return f"{where}: unknown key. {_suggest(key, keys)}".rstrip()
    wanted = found["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    if not key:
        return f"{where}: {wanted}"
    field = keys.get(key) or keys.get(key.rpartition(".")[0])
    meaning = f" {key}: {field.description}; default {field.default!r}." if field else ""
    return f"{where}: must be {wanted}. Got {found['input']!r}.{meaning}"


def _suggest(key: str, keys: Mapping[str, FieldInfo]) -> str:
    close = difflib.get_close_matches(key, keys, n=1, cutoff=0.7)
    last = key.rpartition(".")[2]
    same = [known for known in keys if known.rpartition(".")[2] == last]
    guesses = close or same or difflib.get_close_matches(last, keys, n=1)
    return f"Did you mean {' or '.join(guesses)}?" if guesses else ""


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    """TOML has no null: a key that is None is left out, which means the same."""
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if value is not None
    }
