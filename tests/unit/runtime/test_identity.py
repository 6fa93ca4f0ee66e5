"""Names to numbers, with the account database faked."""

from __future__ import annotations

import grp
import os
import pwd

import pytest

from cronstable.runtime.identity import Identity, IdentityError, resolve_identity

ANNA = pwd.struct_passwd(("anna", "x", 1001, 100, "", "/home/anna", "/bin/sh"))


@pytest.fixture(autouse=True)
def accounts(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_name(name: str) -> pwd.struct_passwd:
        return {"anna": ANNA}[name]

    def by_number(uid: int) -> pwd.struct_passwd:
        return {1001: ANNA}[uid]

    def group(name: str) -> grp.struct_group:
        return {"backup": grp.struct_group(("backup", "x", 34, []))}[name]

    monkeypatch.setattr(pwd, "getpwnam", by_name)
    monkeypatch.setattr(pwd, "getpwuid", by_number)
    monkeypatch.setattr(grp, "getgrnam", group)
    monkeypatch.setattr(os, "getgrouplist", lambda name, gid: [gid, 27])


HOME = (("HOME", "/home/anna"), ("LOGNAME", "anna"), ("USER", "anna"))


@pytest.mark.parametrize(
    ("user", "group", "expected"),
    [
        ("anna", None, Identity(1001, 100, (100, 27), HOME)),
        (1001, None, Identity(1001, 100, (100, 27), HOME)),
        ("anna", "backup", Identity(1001, 34, (34, 27), HOME)),
        ("anna", 7, Identity(1001, 7, (7, 27), HOME)),
        (4000, 7, Identity(4000, 7, (7,))),
        (None, "backup", Identity(None, 34, (34,))),
    ],
)
def test_names_become_numbers(user: str | int | None, group: str | int | None, expected: Identity) -> None:
    assert resolve_identity(user, group, effective_uid=0) == expected


@pytest.mark.parametrize(
    ("user", "group", "words"),
    [
        ("otto", None, "there is no user 'otto'"),
        (4000, None, "uid 4000 has no account on this host, so group is needed"),
        ("anna", "wheel", "there is no group 'wheel'"),
        (None, None, "neither user nor group"),
    ],
)
def test_what_is_unknown_is_refused(user: str | int | None, group: str | None, words: str) -> None:
    with pytest.raises(IdentityError, match=words):
        resolve_identity(user, group, effective_uid=0)


def test_a_daemon_that_is_not_root_switches_to_nobody_not_even_to_itself() -> None:
    with pytest.raises(IdentityError, match="only root may switch, and the daemon runs as uid 1001"):
        resolve_identity("anna", None, effective_uid=1001)


def test_an_account_database_that_fails_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> pwd.struct_passwd:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(pwd, "getpwnam", fail)
    with pytest.raises(IdentityError, match="cannot be read: Input/output error"):
        resolve_identity("anna", None, effective_uid=0)
