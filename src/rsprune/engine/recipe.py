"""The recipe of a run: what to train, how, and what to make of it. TOML in, TOML out.

Every mistake of a recipe is reported at once, with its file, key, range, value and remedy.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_origin

import tomli_w
from pydantic import (
    BaseModel,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from rsprune.checks import did_you_mean
from rsprune.compression.widths import SPREAD_NEEDS, spread_by_cost
from rsprune.data import names as data_names
from rsprune.engine.mistakes import no_value, problem, suggestion
from rsprune.engine.sections import (
    Compress,
    Dense,
    Explore,
    Finetune,
    Loading,
    Recursion,
    Section,
    Training,
)
from rsprune.errors import InvalidParameterError, RecipeError
from rsprune.models import input_shape

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "RATIO_ONLY",
    "SEARCH",
    "Compress",
    "Dense",
    "Explore",
    "Finetune",
    "Recipe",
    "Training",
    "read_recipe",
    "recipe_keys",
]
SEARCH = "search.json"  # beside the recipe of a search for lambda: its own settings
RATIO_ONLY = (
    "epsilon", "unit", "round_to", "target_macs", "target_params", "target_latency",
    "runtime", "batch", "threads", "select", "inherit",
)  # fmt: skip


class Recipe(Section):
    """All settings of a run."""

    model: str = Field("small_cnn", description="vgg16, resnet50, ..., timm:NAME, package:factory")
    model_options: dict[str, Any] = Field({}, description="keyword arguments of the model")
    weights: str | None = Field(None, description="trained weights, instead of a baseline stage")
    data: str = Field("digits", description="digits, cifar10, imagefolder:DIR, package:factory")
    seed: int = Field(0, ge=0, lt=2**31, description="of everything that is random")
    threads: int | None = Field(None, ge=1, description="CPU threads; all if left out")
    device: Literal["auto", "cpu"] = Field(
        "auto", description="where to compute; auto is a GPU if there is one"
    )
    precision: Literal["no", "bf16", "fp16"] = Field(
        "no", description="of mixed-precision training"
    )
    channels_last: bool = Field(False, description="memory layout of images and filters")
    compile: bool = Field(False, description="train through torch.compile")
    winograd: bool = Field(False, description="train wide 3x3 convolutions on a CPU faster")
    onnx: bool = Field(True, description="whether to write model.onnx at the end")
    checkpoint_minutes: float = Field(5.0, gt=0, description="between checkpoints within an epoch")
    loading: Loading = Loading()  # type: ignore[call-arg]
    baseline: Dense = Dense()  # type: ignore[call-arg]
    explore: Explore = Explore()  # type: ignore[call-arg]
    compress: Compress = Compress()  # type: ignore[call-arg]
    recursion: Recursion = Recursion()  # type: ignore[call-arg]
    finetune: Finetune = Finetune()  # type: ignore[call-arg]

    @field_validator("model")
    @classmethod
    def _is_model(cls, name: str) -> str:
        if ":" not in name:
            input_shape(name)  # which refuses an unknown name
        return name

    @field_validator("data")
    @classmethod
    def _is_data(cls, name: str) -> str:
        if ":" not in name and name not in data_names():
            forms = (*data_names(), "imagefolder:DIR")
            raise InvalidParameterError(
                "recipe", "data", f"{', '.join(forms)} or package.module:factory", name,
                did_you_mean(name, forms),
            )  # fmt: skip
        return name

    @model_validator(mode="after")
    def _fits_together(self) -> Recipe:
        checks = (
            self._against_two_gradients, self._against_zero_groups, self._against_idle_spread,
            self._against_no_teacher, self._against_two_ways,
        )  # fmt: skip
        faults = [fault for check in checks for fault in check()]
        if faults:
            raise ValueError(" ".join(faults))
        return self

    def _against_two_gradients(self) -> Iterator[str]:
        """What Prox-SVRG cannot do."""
        if self.explore.optimizer != "prox-svrg":
            return
        if self.explore.clip:
            yield (
                "explore.clip would cut the two gradients of explore.optimizer = 'prox-svrg' "
                "apart; leave it out."
            )
        if self.precision == "fp16":
            yield (
                "precision = 'fp16' cannot scale the two losses of explore.optimizer = "
                "'prox-svrg'; use 'no' or 'bf16'."
            )

    def _against_zero_groups(self) -> Iterator[str]:
        """What has no meaning where exactly the units that are zero go."""
        if self.compress.mode != "zero-groups":
            return
        usual = Compress()  # type: ignore[call-arg]
        for key in RATIO_ONLY:
            if getattr(self.compress, key) != getattr(usual, key):
                yield (
                    f"compress.{key} has no meaning with compress.mode = 'zero-groups', which "
                    "removes exactly the units that are zero. Leave it out, or use mode = 'ratio'."
                )
        if self.explore.optimizer != "hspg":
            yield (
                "compress.mode = 'zero-groups' needs whole units that are zero, which only "
                "explore.optimizer = 'hspg' makes."
            )

    def _against_idle_spread(self) -> Iterator[str]:
        """What only one cut to a target of multiply-accumulates or time can be spread by."""
        cut = self.compress
        if cut.spread != "cost":
            return
        fits = spread_by_cost(cut.target_macs, cut.target_params, cut.target_latency)
        if not fits or self.recursion.rounds > 1:
            yield (
                f"compress.spread = 'cost' is for one round with compress.{SPREAD_NEEDS}. "
                "Use 'auto'."
            )

    def _against_no_teacher(self) -> Iterator[str]:
        """What has no meaning where nobody's scores are imitated."""
        if self.finetune.views and not self.finetune.distill:
            yield (
                f"finetune.views = {self.finetune.views} is how long a teacher's scores are kept, "
                "and with finetune.distill = 0 there is no teacher. Set views = 0, or distill > 0."
            )

    def _against_two_ways(self) -> Iterator[str]:
        """What computes convolutions in another way than Winograd's."""
        if self.winograd and (self.precision != "no" or self.compile):
            yield (
                "winograd = true is for precision = 'no' and compile = false, and they are "
                f"'{self.precision}' and {str(self.compile).lower()}. Choose one way."
            )

    def to_toml(self) -> str:
        """The recipe with every default written out."""
        return tomli_w.dumps(_without_none(self.model_dump(mode="json")))


def read_recipe(
    path: Path | None,
    options: Mapping[str, str | None] | None = None,
    others: Sequence[str] = (),
) -> Recipe:
    """The recipe in a TOML file (or the defaults), with options such as ``explore.lam`` on top.

    Args:
        path: the file.
        options: keys and their values as text; None is a value that is missing.
        others: further options of the command, which an unknown one may be a slip for.

    Raises:
        RecipeError: with every mistake at once.
    """
    values = _parsed(path) if path else {}
    keys = dict(recipe_keys())
    problems = []
    typed: dict[str, str] = {}  # the options of keys
    for name, text in (options or {}).items():
        key, option = name.replace("-", "_"), f"--{name}"
        field = keys.get(key)
        if field is None and not key.startswith("model_options."):
            guess = suggestion(key, [*keys, *others], "--")
            problems.append(f"{option}: unknown option. {guess}".rstrip())
        elif text is None:
            problems.append(no_value(option, key, field))
        else:
            _put(values, key.split("."), _option_value(text, field))
            typed[key] = option
    try:
        recipe = Recipe.model_validate(values)
    except ValidationError as error:
        where = str(path) if path else "recipe"
        problems += [problem(where, typed, found, keys) for found in error.errors()]
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
        values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError([f"{path}: there is no such file."]) from None
    except OSError as error:
        raise RecipeError([f"{path}: cannot be read: {error.strerror}."]) from error
    except UnicodeDecodeError as error:
        raise RecipeError([f"{path}: cannot be read: it is not UTF-8 ({error})."]) from error
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


def _option_value(text: str, field: FieldInfo | None) -> Any:
    """An option's text as TOML would read it; what is no TOML value is a string."""
    if field is not None:
        if field.default is None and text.lower() == "none":
            return None
        if field.annotation in (str, str | None):
            return text  # a directory may be called 2024
        if get_origin(field.annotation) is tuple and not text.startswith("["):
            text = f"[{text}]"
    if text in ("True", "False"):
        text = text.lower()
    try:
        return tomllib.loads(f"value = {'0' * text.startswith('.')}{text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    """TOML has no null: a key that is None is left out, which means the same."""
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if value is not None
    }
