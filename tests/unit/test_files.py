"""Directories that are written whole or not at all; files are tested through their writers."""

from __future__ import annotations

from pathlib import Path

import pytest

from rsprune.errors import StorageError
from rsprune.files import atomic_directory


def tree(home: Path) -> dict[str, str]:
    return {str(p.relative_to(home)): p.read_text() for p in home.rglob("*") if p.is_file()}


def test_a_directory_takes_the_place_of_another(tmp_path: Path) -> None:
    """Parents are made, old files go, and nothing is left beside it."""
    target = tmp_path / "a" / "b"
    for name in ("first", "second"):
        with atomic_directory(target) as new:
            (new / name).write_text(name)
    assert tree(tmp_path) == {"a/b/second": "second"}
    assert [p.name for p in target.parent.iterdir()] == ["b"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("there", [True, False])
def test_a_failure_changes_nothing(tmp_path: Path, error: BaseException, there: bool) -> None:
    """What was there is still there, and half of the new one is not."""
    target = tmp_path / "b"
    if there:
        target.mkdir()
        (target / "old").write_text("old")
    wanted = StorageError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(wanted):
        _fail(target, error)
    assert tree(tmp_path) == ({"b/old": "old"} if there else {})
    assert [p.name for p in tmp_path.iterdir()] == ["b"] * there


def _fail(target: Path, error: BaseException) -> None:
    with atomic_directory(target) as new:
        (new / "half").write_text("half")
        raise error


def test_a_place_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(StorageError, match=r"'.*file/inside' could not be written"),
        atomic_directory(tmp_path / "file" / "inside"),
    ):
        pass
