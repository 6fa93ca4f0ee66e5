"""Real processes on one directory, as fast as they can."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

OPERATIONS = 2500


@pytest.fixture
def fast_directory(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a place: ten thousand syncs of a slow disk would prove nothing more."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    directory = Path(tempfile.mkdtemp(prefix="cronstable-fs-", dir="/dev/shm"))
    yield directory
    shutil.rmtree(directory)


@pytest.mark.integration
def test_ten_thousand_operations_of_four_processes_keep_terms_apart(fast_directory: Path, storm: Any) -> None:
    helds = storm.blow([fast_directory] * 4, OPERATIONS)
    storm.judge(helds)
    wins = [held for held in helds if held["kind"] == "win"]
    assert len(wins) > 100
    assert {win["who"][:2] for win in wins} == {"w0", "w1", "w2", "w3"}
    assert os.listdir(fast_directory / "default" / "tmp") == []


@pytest.mark.parametrize(
    "planted",
    [
        [("win", 5, "a", 0, 1), ("win", 5, "b", 2, 3)],
        [("win", 5, "a", 0, 1), ("renew", 5, "b", 2, 3)],
        [("win", 5, "a", 0, 1), ("win", 6, "b", 2, 3), ("renew", 5, "a", 4, 5)],
        [("win", 6, "a", 0, 1), ("win", 5, "b", 2, 3)],
    ],
    ids=["a fence twice", "another's term", "an old term lives on", "fences go back"],
)
def test_the_judge_of_the_storm_notices_what_must_not_happen(storm: Any, planted: list[Any]) -> None:
    helds = [dict(zip(("kind", "fence", "who", "sent", "got"), line, strict=True)) for line in planted]
    with pytest.raises(AssertionError):
        storm.judge(helds)
