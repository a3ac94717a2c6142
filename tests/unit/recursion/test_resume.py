"""An interrupted recursion goes on, and ends with the same bits as an uninterrupted one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rsprune
from rsprune.errors import FileFormatError, InvalidParameterError, RunError, StorageError
from rsprune.recursion import PruneResult
from rsprune.recursion.state import State
from tests.unit.recursion.toy import Counter, Net, run

ROOT = Path(__file__).parents[3]
CALLS = 19  # of the loops and of on_event in an uninterrupted run
TOLD = (1, 4, 7, 10, 13, 17, 18)  # those of on_event


class StoppedError(Exception):
    """Stands for whatever may end a process."""


def interrupt() -> None:
    raise StoppedError


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> PruneResult:
    """An uninterrupted run: it falls back from one model to a larger one, so all stages occur."""
    counter = Counter(-1, interrupt)
    result = run(tmp_path_factory.mktemp("whole"), counter)
    assert len(counter.calls) == CALLS
    assert tuple(i for i, name in enumerate(counter.calls) if name == "noted") == TOLD
    assert counter.calls.count("finetune") == 2
    assert result.best == 0
    return result


def assert_same(one: PruneResult, other: PruneResult) -> None:
    """History, choice, and every bit of the weights."""
    assert one.history == other.history
    assert str(one) == str(other)
    theirs = other.model.state_dict()
    for name, tensor in one.model.state_dict().items():
        assert torch.equal(tensor, theirs[name]), name


def test_a_run_in_memory_ends_with_the_same_bits(whole: PruneResult) -> None:
    assert_same(run(None), whole)


@pytest.mark.parametrize(
    ("call", "after"),
    [(call, False) for call in range(CALLS)]
    + [(call, True) for call in range(CALLS) if call not in TOLD],
)
def test_any_interruption_leads_to_the_same_end(
    whole: PruneResult, tmp_path: Path, call: int, after: bool
) -> None:
    """Before or after the work of every call, stage by stage."""
    first = Counter(call, interrupt, after=after)
    with pytest.raises(StoppedError):
        run(tmp_path, first)
    second = Counter(-1, interrupt)
    assert_same(run(tmp_path, second), whole)
    trained = [name for name in first.calls[:call] if name in ("explore", "finetune")]
    again = [name for name in second.calls if name in ("explore", "finetune")]
    assert len(trained) + len(again) == 5  # nothing that was finished is trained again


def test_a_run_that_is_interrupted_again_and_again(whole: PruneResult, tmp_path: Path) -> None:
    """At its second call, then at its third, until there are not so many calls left."""
    interruptions = 0
    for call in range(1, CALLS):
        try:
            result = run(tmp_path, Counter(call, interrupt))
        except StoppedError:
            interruptions += 1
            continue
        break
    assert interruptions >= 5
    assert_same(result, whole)


def test_a_finished_run_is_read_not_repeated(whole: PruneResult, tmp_path: Path) -> None:
    run(tmp_path)
    counter = Counter(-1, interrupt)
    assert_same(run(tmp_path, counter), whole)
    assert set(counter.calls) == {"noted"}


def test_events_of_an_earlier_call_are_told_again(tmp_path: Path) -> None:
    """All in order, marked; whoever keeps a log can leave out what it has."""
    told: list[dict[str, Any]] = []
    with pytest.raises(StoppedError):
        run(tmp_path, Counter(5, interrupt))  # the second explore
    run(tmp_path, on_event=told.append)
    fresh: list[dict[str, Any]] = []
    run(None, on_event=fresh.append)
    assert [event.pop("resumed") for event in told] == [True, True, *[False] * (len(told) - 2)]
    assert not any(event.pop("resumed") for event in fresh)
    assert told == fresh


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_real_kills_lead_to_the_same_end(whole: PruneResult, tmp_path: Path) -> None:
    """kill -9 in sparse training, after a cut and in fine-tuning, one process after the other."""
    for call in (2, 6, 9):  # counted from the start of each process
        process = _program(tmp_path, call)
        assert process.returncode == -signal.SIGKILL, process.stderr
    assert_same(run(tmp_path), whole)


def _program(directory: Path, call: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.unit.recursion.toy", str(directory), str(call)],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"lam": 0.01}, "'lam' was 0.006 and is 0.01"),
        ({"rounds": 2, "flat": 0.1}, "'rounds' was 3 and is 2; 'flat' was 0.02 and is 0.1"),
        ({"finetune": None}, "'finetune' was True and is False"),
        ({"epsilon": 0.2}, "'epsilon' was 0.1 and is 0.2"),
    ],
)
def test_other_arguments_are_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(StoppedError):
        run(tmp_path, Counter(3, interrupt))
    before = (tmp_path / "state.json").read_bytes()
    with pytest.raises(RunError, match="other arguments") as caught:
        run(tmp_path, **changes)
    assert named in str(caught.value)
    assert (tmp_path / "state.json").read_bytes() == before


def test_directories_from_before_there_was_a_choice_of_spread_are_even(tmp_path: Path) -> None:
    aim = {"rounds": 1, "target_macs": 0.5}
    expected = run(tmp_path, **aim, spread="even")
    state = json.loads((tmp_path / "state.json").read_text())
    del state["arguments"]["spread"]
    (tmp_path / "state.json").write_text(json.dumps(state))
    assert_same(run(tmp_path, **aim, spread="even"), expected)
    with pytest.raises(RunError, match="'spread' was 'even' and is 'auto'"):
        run(tmp_path, **aim)


def test_cuts_of_earlier_versions_do_not_say_how_they_were_spread(tmp_path: Path) -> None:
    aim = {"rounds": 1, "target_macs": 0.5, "spread": "cost"}
    run(tmp_path, **aim)
    state = json.loads((tmp_path / "state.json").read_text())
    del state["stages"]["round-0.cut"]["spread"]
    (tmp_path / "state.json").write_text(json.dumps(state))
    assert run(tmp_path, **aim).history[0].spread == "cost"


def test_another_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        run(tmp_path, Counter(3, interrupt))
    model = Net()
    with pytest.raises(RunError, match="'model' was 'Net "):
        run(tmp_path, model=model)


def test_a_directory_that_cannot_be_written_to_is_reported(tmp_path: Path) -> None:
    """Nothing can be made below a file, whoever asks."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="could not be made"):
        run(tmp_path / "file" / "state")
    with pytest.raises(InvalidParameterError, match="There is a file of this name"):
        run(tmp_path / "file")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_directory_is_reported_with_the_run_intact(
    whole: PruneResult, tmp_path: Path
) -> None:
    with pytest.raises(StoppedError):
        run(tmp_path, Counter(5, interrupt))
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(StorageError, match="could not be written"):
            run(tmp_path)
    finally:
        tmp_path.chmod(0o700)
    assert_same(run(tmp_path), whole)


LIMITED = """
import resource, sys, torch
from pathlib import Path
from tests.unit.recursion.toy import run
torch.set_num_threads(1)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
from rsprune.errors import StorageError
try:
    run(Path(sys.argv[1]))
except StorageError as error:
    print("StorageError", error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits on the size of files")
@pytest.mark.parametrize("limit", [500, 3000])
def test_a_full_disk_is_reported_and_the_run_goes_on_later(
    whole: PruneResult, tmp_path: Path, limit: int
) -> None:
    """A real failure to write, of the state (500 bytes) or of a model (3000)."""
    process = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path), str(limit)],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert process.stdout.startswith("StorageError"), process.stderr
    assert not list(tmp_path.glob(".*"))
    assert_same(run(tmp_path), whole)


def test_leftovers_of_killed_writes_are_removed(whole: PruneResult, tmp_path: Path) -> None:
    for name in (".state.json.abc", ".round-0.explored.safetensors.xyz"):
        (tmp_path / name).write_text("half")
    (tmp_path / ".mine").write_text("kept")
    assert_same(run(tmp_path), whole)
    assert [path.name for path in tmp_path.glob(".*")] == [".mine"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "damaged"),
        ("[]", "was not written by"),
        ('{"format": "other"}', "was not written by"),
        ('{"format": "rsprune recursion", "version": 99}', "begin anew"),
    ],
)
def test_a_state_that_is_not_ours_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "state.json").write_text(content)
    with pytest.raises(FileFormatError, match=message):
        run(tmp_path)


def test_a_damaged_or_missing_model_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        run(tmp_path, Counter(5, interrupt))
    path = tmp_path / "round-0.cut.safetensors"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(FileFormatError, match=r"round-0\.cut"):
        run(tmp_path)
    path.unlink()
    with pytest.raises(FileFormatError, match=r"no file.*round-0\.cut"):
        run(tmp_path)


def test_the_directory_is_readable_by_people_and_by_load(tmp_path: Path) -> None:
    """JSON and safetensors, named after their stages; no pickle."""
    result = run(tmp_path)
    stages = json.loads((tmp_path / "state.json").read_text())["stages"]
    assert stages["given.accuracy"] == result.baseline
    assert stages["round-1.explored.accuracy"] == result.history[1].accuracy
    assert stages["done"]["best"] == 0
    names = {path.name for path in tmp_path.iterdir()}
    assert "round-0.cut.safetensors" in names
    assert all(name.endswith((".json", ".safetensors")) for name in names)
    best = rsprune.load(Net(), tmp_path / "round-0.finetuned.safetensors")
    assert rsprune.profile(best, torch.zeros(1, 1, 6, 6)).weights == result.after.weights


def test_a_model_in_memory_is_kept_apart_from_the_one_in_use() -> None:
    """What is fetched is a copy, and what is kept does not follow later training."""
    model = Net()
    state = State(model, {}, None)
    other = Net().eval()
    state.keep("round-0.cut", other)
    weight = other.fc.weight.detach().clone()
    nn.init.zeros_(other.fc.weight)
    fetched = state.fetch("round-0.cut")
    assert torch.equal(fetched.fc.weight, weight)
    assert fetched.training
    nn.init.zeros_(fetched.fc.weight)
    assert torch.equal(state.fetch("round-0.cut").fc.weight, weight)
