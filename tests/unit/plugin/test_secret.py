"""Sources of secrets, as plugins read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cronstable.core.job import Json
from cronstable.plugin.errors import InvalidSettings
from cronstable.plugin.secret import READ_TIMEOUT, SecretSource
from cronstable.testing.clock import VirtualClock, run_virtual
from cronstable.testing.host import FakeHost


def reveal(source: Json, *, hang: bool = False) -> str:
    async def run() -> str:
        host = FakeHost(VirtualClock.of_loop())
        if hang:
            host.threads.hang.add("secrets")
        found = SecretSource.of(source)
        assert found is not None
        return await found.reveal(host)

    return run_virtual(run)


def test_the_first_source_that_is_given_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secret"
    file.write_text("\ufefffrom the file \n", encoding="utf-8")
    monkeypatch.setenv("SECRET", "from the variable")
    assert reveal({"value": "here", "fromFile": str(file), "fromEnvVar": "SECRET"}) == "here"
    assert reveal({"value": None, "fromFile": str(file), "fromEnvVar": "SECRET"}) == "from the file"
    assert reveal({"fromEnvVar": "SECRET"}) == "from the variable"
    assert reveal("plain text") == "plain text"


def test_a_rotated_file_counts_at_once(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    for text in ("old", "new"):
        file.write_text(text)
        assert reveal({"fromFile": str(file)}) == text


@pytest.mark.parametrize("nothing", [None, {}, {"value": None}, 3])
def test_no_source_is_no_secret(nothing: Json) -> None:
    assert SecretSource.of(nothing) is None


def test_a_source_that_gives_nothing_is_an_error_without_a_word_of_the_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_SUCH_SECRET", raising=False)
    binary = tmp_path / "binary"
    binary.write_bytes(b"sesame\xff\xfe\xfd")
    (tmp_path / "empty").write_text(" \n")
    for source, why in (
        ({"fromEnvVar": "NO_SUCH_SECRET"}, "empty"),
        ({"fromFile": str(tmp_path / "empty")}, "empty"),
        ({"fromFile": str(tmp_path / "gone")}, "No such file"),
        ({"fromFile": str(binary)}, "not a file of UTF-8 text"),
        ({"value": ""}, "empty"),
    ):
        with pytest.raises(InvalidSettings, match=why) as raised:
            reveal(dict(source))
        assert "sesame" not in str(raised.value)


def test_a_file_on_a_mount_that_hangs_is_waited_for_only_so_long() -> None:
    with pytest.raises(InvalidSettings, match=f"{READ_TIMEOUT:g} s"):
        reveal({"fromFile": "/mnt/dead/secret"}, hang=True)


def test_a_source_does_not_show_its_value() -> None:
    assert "sesame" not in repr(SecretSource.of({"value": "sesame"}))
