"""A training that can go on: everything it is made of, in one safetensors file.

The tensors of the model, the optimizer and the averaged weights are the file's tensors; numbers are
JSON in its metadata, which keeps every bit of a float.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from rsprune.errors import RunError
from rsprune.files import write_tensors

VERSION = 1


@dataclass
class Position:
    """Where a training is, and what the present epoch has seen so far."""

    epoch: int = 0  # finished epochs
    step: int = 0  # steps taken in the present one
    loss: float = 0.0  # summed over its images
    right: int = 0
    seen: int = 0
    seconds: float = 0.0  # that it took, before a stop


class Checkpoint:
    """One file that holds the state of a training.

    Args:
        path: the file.
        job: what is trained, in words; a file of another job is refused.
        modules: by name, each whose parameters and buffers belong to the state.
        optimizer: whose state belongs to it too.
    """

    def __init__(
        self,
        path: Path,
        job: str,
        modules: dict[str, nn.Module],
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self.path, self.job, self.modules, self.optimizer = path, job, modules, optimizer

    def save(self, position: Position) -> None:
        """Write the state, whole or not at all."""
        tensors = {
            f"{owner}/{name}": tensor
            for owner, module in self.modules.items()
            for name, tensor in module.state_dict().items()
        }
        state = self.optimizer.state_dict()
        numbers: dict[str, dict[str, Any]] = {}
        for index, own in state["state"].items():
            for name, value in own.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer/{index}/{name}"] = value
                else:
                    numbers.setdefault(str(index), {})[name] = value
        tensors |= _random_states()
        metadata = {
            "version": VERSION,
            "job": self.job,
            "position": asdict(position),
            "numbers": numbers,
            "groups": [_plain(group) for group in state["param_groups"]],
        }
        own = {name: t.detach().contiguous().clone() for name, t in tensors.items()}
        write_tensors(self.path, own, {"rsprune": json.dumps(metadata)})

    def load(self) -> Position | None:
        """Take up the state of the file, if there is one; where the training was."""
        if not self.path.exists():
            return None
        try:
            with safe_open(str(self.path), framework="pt") as file:
                metadata = json.loads(file.metadata()["rsprune"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            raise RunError(
                f"'{self.path}' is damaged: {error}. Delete it to repeat its stage."
            ) from error
        if (metadata["version"], metadata["job"]) != (VERSION, self.job):
            raise RunError(f"'{self.path}' is of another training. Delete it to repeat its stage.")
        for owner, module in self.modules.items():
            module.load_state_dict(_of(owner, tensors))
        self._load_optimizer(_of("optimizer", tensors), metadata)
        _set_random_states(tensors)
        return Position(**metadata["position"])

    def _load_optimizer(self, tensors: dict[str, Tensor], metadata: dict[str, Any]) -> None:
        state: dict[int, dict[str, Any]] = {
            int(index): dict(own) for index, own in metadata["numbers"].items()
        }
        for key, tensor in tensors.items():
            index, _, name = key.partition("/")
            state.setdefault(int(index), {})[name] = tensor
        present = self.optimizer.state_dict()["param_groups"]
        groups = [{**now, **saved} for now, saved in zip(present, metadata["groups"], strict=True)]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})


def _of(owner: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    start = f"{owner}/"
    return {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}


def _plain(group: dict[str, Any]) -> dict[str, Any]:
    """The numbers of a parameter group; what else it holds is made anew with the optimizer."""
    return {
        name: value
        for name, value in group.items()
        if value is None or isinstance(value, bool | int | float | str)
    }


def _random_states() -> dict[str, Tensor]:
    states = {"random/cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states |= {f"random/{i}": s for i, s in enumerate(torch.cuda.get_rng_state_all())}
    return states


def _set_random_states(tensors: dict[str, Tensor]) -> None:
    states = _of("random", tensors)
    torch.set_rng_state(states.pop("cpu"))
    for device, state in states.items():
        if int(device) < torch.cuda.device_count():  # a run may go on with fewer GPUs
            torch.cuda.set_rng_state(state, int(device))
