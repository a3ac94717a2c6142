"""The errors rsprune raises, and the one warning category it uses."""

from __future__ import annotations

from collections.abc import Sequence


class RsPruneError(Exception):
    """Base of every error raised by rsprune on purpose."""


class InvalidParameterError(RsPruneError, ValueError):
    """A hyper-parameter, option or argument outside its allowed range.

    The message names the owner, the parameter, the allowed range, the value received and a remedy.
    """

    def __init__(
        self, owner: str, name: str, allowed: str, value: object, remedy: str = ""
    ) -> None:
        self.owner, self.name, self.allowed, self.value, self.remedy = (
            owner,
            name,
            allowed,
            value,
            remedy,
        )
        message = f"The '{name}' parameter of {owner} must be {allowed}. Got {value!r} instead."
        super().__init__(f"{message} {remedy}".rstrip())

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.owner, self.name, self.allowed, self.value, self.remedy)


class GradientError(RsPruneError, ValueError):
    """A gradient that cannot be used: sparse, complex, or (on request) NaN or infinite."""


class RsPruneWarning(UserWarning):
    """Something that runs but will probably not do what was meant."""


class DataError(RsPruneError):
    """A data set that is missing or damaged; the message says how to get it."""


class TraceError(RsPruneError):
    """A model that could not be run on its example inputs."""


class VerificationError(RsPruneError):
    """A pruned model that does not compute what the zeroed full model computes."""


class FileFormatError(RsPruneError):
    """A file that is damaged, of another format, or of another model."""


class StorageError(RsPruneError, OSError):
    """A file that could not be written: a full disk, a directory without permission."""


class DivergenceError(RsPruneError):
    """A training whose loss became NaN or infinite."""


class RunError(RsPruneError):
    """A run that cannot be made as asked, or whose directory cannot be used so."""


class ExportError(RsPruneError):
    """A model that could not be exported, or whose export computes something else."""


class RecipeError(RsPruneError, ValueError):
    """A recipe with mistakes; ``problems`` lists them all."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(self.problems))

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        return type(self), (self.problems,)
