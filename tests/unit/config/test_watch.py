"""A change of anything that a configuration was read from is noticed (cases of kind reload)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from cronstable.config.watch import signature


def test_an_untouched_configuration_has_an_equal_signature(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("jobs: []\n")
    watched = [str(file), str(tmp_path), str(tmp_path / "absent")]
    assert signature(watched) == signature(reversed(watched))


def test_a_swapped_link_above_the_file_is_noticed(tmp_path: Path) -> None:
    for version in ("v1", "v2"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "cronstable.yaml").write_text(f"# {version}\njobs: []\n")
        os.utime(tmp_path / version / "cronstable.yaml", ns=(1, 1))
    (tmp_path / "..data").symlink_to("v1")
    (tmp_path / "cronstable.yaml").symlink_to("..data/cronstable.yaml")
    path = str(tmp_path / "cronstable.yaml")
    before = signature([path])
    (tmp_path / "next").symlink_to("v2")
    os.replace(tmp_path / "next", tmp_path / "..data")
    assert signature([path]).changed(before) == (path,)


def test_a_secret_rotated_in_place_with_its_old_time_and_size_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("one")
    facts = file.stat()
    before = signature([str(file)])
    with open(file, "r+") as handle:
        handle.write("two")
    os.utime(file, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert signature([str(file)]) != before


def test_a_large_file_is_judged_by_its_stat(tmp_path: Path) -> None:
    file = tmp_path / "big.yaml"
    file.write_text("x" * 100_000)
    before = signature([str(file)])
    assert before == signature([str(file)])
    os.utime(file, ns=(5, 5))
    assert signature([str(file)]) != before


def test_a_file_that_comes_or_goes_in_a_directory_is_noticed(tmp_path: Path) -> None:
    before = signature([str(tmp_path)])
    (tmp_path / "new.yaml").write_text("jobs: []\n")
    after = signature([str(tmp_path)])
    assert after.changed(before) == (str(tmp_path),)
    (tmp_path / "new.yaml").unlink()
    assert signature([str(tmp_path)]) == before


def test_a_missing_include_that_appears_is_noticed(tmp_path: Path) -> None:
    path = str(tmp_path / "absent.yaml")
    before = signature([path, "bad\0path"])
    Path(path).write_text("jobs: []\n")
    assert signature([path, "bad\0path"]).changed(before) == (path,)


def test_an_edited_env_file_changes_the_signature_of_what_was_loaded(load_files: Any, tmp_path: Path) -> None:
    text = "jobs:\n  - {name: a, command: echo, schedule: '@daily', env_file: x.env}\n"
    result = load_files({"cronstable.yaml": text, "x.env": "A=1\n"})
    before = signature(result.watched)
    (tmp_path / "x.env").write_text("A=2\n")
    assert signature(result.watched).changed(before) == (str(tmp_path / "x.env"),)
