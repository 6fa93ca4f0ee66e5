"""The claim log under faults: at every single call of an append the process fails, dies, or loses its lock."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cronstable.api import Fenced, Full, Held, Seen, StoreUnavailable, Taken, Won
from cronstable.runtime.files import SystemFiles

MOST_CALLS = 80
RECORD = b'{"n":"mine"}'
OTHER = b'{"n":"theirs"}'


class Case:
    """Node ``a`` leads and is about to append number 2; ``b`` looks on."""

    def __init__(self, share: Any, run: Callable[[Any], Any]) -> None:
        self.share, self.run = share, run
        self.a, self.b = share.node("a"), share.node("b")
        self.grant = self.a.win()
        assert isinstance(self.append(b"first", 1), Won)
        self.b.observe()
        self.start = len(self.a.disk.calls)

    def append(self, data: bytes = RECORD, number: int = 2) -> Any:
        return self.run(self.a.store.append(self.grant, number, data))

    def standing(self) -> bytes | None:
        found: bytes | None = self.run(self.b.store.read(2))
        return found

    def struck(self, step: int) -> bool:
        return len(self.a.disk.calls) >= self.start + step

    def succeed(self) -> Any:
        """``b`` takes over, by the lease alone."""
        standing = self.b.observe()
        answer = self.b.acquire(over=standing if isinstance(standing, Seen) else None)
        assert isinstance(answer, Held)
        return answer.grant

    def names(self) -> list[str]:
        return sorted(os.listdir(self.a.layout.claims))


def test_a_call_that_fails_once_leaves_the_record_or_none_and_an_honest_answer(
    make_share: Callable[[], Any], fail_at: Any, errnos: tuple[int, ...], run: Any
) -> None:
    for code in (*errnos, errno.EDQUOT):
        for step in range(1, MOST_CALLS):
            case = Case(make_share(), run)
            fail_at(case.a.disk, step, code)
            answer: Any = None
            ambiguous = False
            try:
                answer = case.append()
            except StoreUnavailable as error:
                ambiguous = error.ambiguous
            struck = case.struck(step)
            case.a.disk.before = lambda n, name: None
            where = f"errno {code} at call {step}, {case.a.disk.calls[case.start :]}: {answer}"
            assert case.standing() in (None, RECORD), where
            if isinstance(answer, Won):
                assert case.standing() == RECORD, where
            elif not ambiguous:
                assert case.standing() is None, where
            # Sent again, the same bytes come to the same place, whatever became of them before.
            again = case.append()
            assert isinstance(again, Won) or again == Taken(RECORD), where
            assert case.names() == ["000000000001", "000000000002"], where
            assert case.a.disk.fds == set(), where
            if not struck:
                break
        else:
            raise AssertionError("an append makes more calls than this test looks at")


@pytest.mark.parametrize("effective", [False, True], ids=["before the call", "after the call"])
def test_a_process_that_dies_at_any_call_leaves_a_whole_record_or_none_and_its_successor_goes_on(
    make_share: Callable[[], Any], die_at: Any, died: type[BaseException], run: Any, effective: bool
) -> None:
    seen = set()
    for step in range(1, MOST_CALLS):
        case = Case(make_share(), run)
        die_at(case.a.disk, step, effective)
        try:
            case.append()
        except died:
            pass
        else:
            assert not case.struck(step)
            break
        landed = case.standing()
        assert landed in (None, RECORD)
        seen.add(landed)
        grant = case.succeed()
        answer = run(case.b.store.append(grant, 2, OTHER))
        assert answer == (Taken(RECORD) if landed else Won(answer.at if isinstance(answer, Won) else None))
        assert isinstance(run(case.b.store.append(grant, 3, OTHER)), Won)
        assert run(case.b.store.span()).last == 3
    else:
        raise AssertionError("an append makes more calls than this test looks at")
    assert seen == {None, RECORD}


def test_a_lease_that_changes_hands_at_any_call_never_has_two_records_of_one_number(
    make_share: Callable[[], Any], run: Any
) -> None:
    """The server forgets the lock; another node takes over and appends in the middle of our append."""
    outcomes = set()
    for step in range(1, MOST_CALLS):
        case = Case(make_share(), run)
        fired: list[Any] = []

        def strike(n: int, name: str, case: Case = case, fired: list[Any] = fired, step: int = step) -> None:
            if n == case.start + step and not fired:
                fired.append(None)
                case.share.server.forget()
                grant = case.succeed()
                fired[0] = run(case.b.store.append(grant, 2, OTHER))

        case.a.disk.before = strike
        answer: Any = None
        try:
            answer = case.append()
        except StoreUnavailable as error:
            answer = error
        if not fired:
            break
        theirs = fired[0]
        assert not (isinstance(answer, Won) and isinstance(theirs, Won)), f"call {step}: both won"
        assert case.standing() == (OTHER if isinstance(theirs, Won) else RECORD)
        if not isinstance(theirs, Won):
            # Ours was first, and they know it. Whatever we were told, we may not start: the term is over.
            assert theirs == Taken(RECORD)
            assert not isinstance(answer, Won) or case.append() in (Fenced(), Taken(RECORD))
        outcomes.add(type(theirs))
    else:
        raise AssertionError("an append makes more calls than this test looks at")
    assert outcomes == {Won, Taken}


def test_a_full_disk_is_full_and_the_next_append_works(share: Any, fail_at: Any, run: Any) -> None:
    case = Case(share, run)
    writes = [n for n, name in enumerate(case.a.disk.calls) if name == "write"]
    assert writes
    case.a.disk.before = lambda n, name: _no_room() if name == "write" else None
    assert case.append() == Full()
    assert case.standing() is None
    case.a.disk.before = lambda n, name: None
    assert isinstance(case.append(), Won)


def test_a_full_disk_does_not_hide_what_stands_there_already(share: Any, run: Any) -> None:
    case = Case(share, run)
    assert isinstance(case.append(), Won)
    case.a.disk.before = lambda n, name: _no_room() if name == "write" else None
    before = len(case.a.disk.calls)
    assert isinstance(case.append(), Won)
    assert case.standing() == RECORD
    # Its name may not have been durable, as nobody was told.
    assert "fsync" in case.a.disk.calls[before:]


def _no_room() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_mount_without_hard_links_keeps_no_claims(share: Any, run: Any) -> None:
    case = Case(share, run)

    def refuse(n: int, name: str) -> None:
        if name == "link":
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    case.a.disk.before = refuse
    with pytest.raises(StoreUnavailable, match="not supported"):
        case.append()
    assert case.standing() is None


def test_the_number_of_files_stays_bounded(share: Any, run: Any) -> None:
    case = Case(share, run)
    for number in range(2, 700):
        assert isinstance(case.append(b"record %d" % number, number), Won)
        if number % 100 == 0:
            run(case.a.store.trim(case.grant, number - 50))
    assert len(case.names()) < 160
    assert run(case.b.store.span()).first == 550
    assert case.append(OTHER, 3) == Taken(b"")


def test_a_log_of_which_only_the_low_mark_is_left_does_not_begin_anew(share: Any, run: Any) -> None:
    case = Case(share, run)
    for number in range(2, 10):
        case.append(b"x", number)
    run(case.a.store.trim(case.grant, 6))
    for name in case.names():
        if name != "low":
            os.unlink(os.path.join(case.a.layout.claims, name))
    span = run(case.b.store.span())
    assert (span.first, span.last) == (6, 5)
    assert case.append(OTHER, 1) == Taken(b"")


def test_the_store_tells_the_file_servers_time(share: Any, run: Any) -> None:
    case = Case(share, run)
    case.a.disk.skew = 3600.0
    at = run(case.a.store.span()).at
    case.a.disk.skew = 0.0
    assert at - run(case.a.store.span()).at == pytest.approx(3600, abs=60)


def test_a_damaged_low_mark_stops_the_claims(share: Any, run: Any) -> None:
    case = Case(share, run)
    with open(os.path.join(case.a.layout.claims, "low"), "wb") as file:
        file.write(b"garbage")
    with pytest.raises(StoreUnavailable, match="damaged"):
        case.append()


def test_a_low_mark_ahead_of_the_records_that_were_copied_back_is_where_the_log_goes_on(share: Any, run: Any) -> None:
    case = Case(share, run)
    with open(os.path.join(case.a.layout.claims, "low"), "wb") as file:
        file.write(b"500\n")
    span = run(case.a.store.span())
    assert (span.first, span.last) == (500, 499)
    assert case.append(OTHER, 499) == Taken(b"")
    assert isinstance(case.append(OTHER, 500), Won)


def test_a_directory_in_the_place_of_a_record_is_a_damaged_record(share: Any, run: Any) -> None:
    case = Case(share, run)
    os.mkdir(os.path.join(case.a.layout.claims, "000000000002"))
    assert case.append() == Taken(b"")
    assert run(case.b.store.span()).last == 2
    assert case.standing() == b""


@pytest.mark.parametrize("kind", ["pipe", "pipe with a writer", "socket", "loop"])
def test_what_is_no_file_holds_up_nobody(share: Any, run: Any, tmp_path: Path, kind: str) -> None:
    case = Case(share, run)
    with contextlib.ExitStack() as stack:
        record, stray = (os.path.join(case.a.layout.claims, name) for name in ("000000000002", "1000"))
        for path in (record, stray, os.path.join(case.a.layout.entries, "0123456789ab")):
            if kind == "loop":
                os.symlink(path, path)
            elif kind == "socket":
                bound = stack.enter_context(socket.socket(socket.AF_UNIX))
                short = os.open(os.path.dirname(path), os.O_RDONLY)
                stack.callback(os.close, short)
                bound.bind(f"/proc/self/fd/{short}/{os.path.basename(path)}")
            else:
                os.mkfifo(path)
            if kind == "pipe with a writer":
                stack.callback(os.close, os.open(path, os.O_RDWR))
        assert case.append() == Taken(b"")
        assert run(case.b.store.span()).last == 2
        assert case.standing() == b""
        assert list(run(case.b.store.entries())) == []
        assert len(case.b.host.logged("1000 is no record of the claim log")) == 1


class Lent(SystemFiles):
    """This host serves the directory, and has lent its files to others."""

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        if flags & os.O_NONBLOCK:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), path)
        return super().open(path, flags, mode)


def test_a_file_that_another_host_has_to_give_back_first_is_waited_for(share: Any, run: Any) -> None:
    case = Case(share, run)
    case.b.disk.real = Lent()
    assert isinstance(case.append(), Won)
    assert case.standing() == RECORD


class Refusing(SystemFiles):
    """Of these names somebody else is the owner."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        if os.path.basename(path) in self.names:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return super().open(path, flags, mode)


@pytest.mark.parametrize("name", ["1st-of-may.txt", "1000"])
def test_a_file_that_cannot_be_read_stops_the_claims_only_when_its_name_is_a_number(
    share: Any, run: Any, name: str
) -> None:
    case = Case(share, run)
    Path(case.a.layout.claims, name).touch()
    case.b.disk.real = Refusing(name)
    if name == "1000":
        with pytest.raises(StoreUnavailable, match="Permission denied"):
            run(case.b.store.span())
        return
    assert [run(case.b.store.span()).last for _ in range(3)] == [1, 1, 1]
    assert len(case.b.host.logged("1st-of-may.txt cannot be read")) == 1


@pytest.mark.parametrize("name", ["README", "0123456789ab"])
def test_an_entry_that_cannot_be_read_counts_only_when_its_name_is_that_of_a_process(
    share: Any, run: Any, name: str
) -> None:
    case = Case(share, run)
    run(case.a.store.put_entry(b"mine"))
    Path(case.a.layout.entries, name).touch()
    case.b.disk.real = Refusing(name)
    if name == "README":
        assert list(run(case.b.store.entries())) == [b"mine"]
        assert len(case.b.host.logged("README cannot be read")) == 1
        return
    with pytest.raises(StoreUnavailable, match="Permission denied"):
        run(case.b.store.entries())


def test_names_that_are_no_numbers_are_no_records(share: Any, run: Any) -> None:
    case = Case(share, run)
    for name in ("\u00b2" * 12, "\u0661" * 12, "00000000001x", ".nfs00000001", "1000", "7.tmp"):
        with open(os.path.join(case.a.layout.claims, name), "wb"):
            pass
    assert run(case.b.store.span()).last == 1
    assert len(case.b.host.logged("1000 is no record of the claim log")) == 1
    assert case.b.host.logged("7.tmp") == []


@pytest.mark.parametrize("name", ["1000", "0000000000002"])
def test_a_file_that_may_be_a_record_of_a_newer_version_stops_the_claims(share: Any, run: Any, name: str) -> None:
    case = Case(share, run)
    with open(os.path.join(case.a.layout.claims, name), "wb") as file:
        file.write(b'{"v":7,"claims":[]}')
    with pytest.raises(StoreUnavailable, match="may be a record of the claim log"):
        run(case.b.store.span())


def test_a_log_among_too_many_foreign_files_stops_the_claims(share: Any, run: Any) -> None:
    case = Case(share, run)
    for number in range(30):
        with open(os.path.join(case.a.layout.claims, f"7{number}"), "wb"):
            pass
    with pytest.raises(StoreUnavailable, match="too many files here are no records"):
        run(case.b.store.span())


def test_a_directory_among_the_entries_blocks_nobody(share: Any, run: Any) -> None:
    case = Case(share, run)
    os.mkdir(os.path.join(case.a.layout.entries, "junk"))
    run(case.a.store.put_entry(b"mine"))
    assert list(run(case.b.store.entries())) == [b"mine"]


def test_an_entry_is_stale_by_the_file_servers_clock_and_not_by_that_of_a_node(share: Any, run: Any) -> None:
    case = Case(share, run)
    run(case.b.store.put_entry(b"theirs"))
    run(case.a.store.put_entry(b"mine"))
    case.a.clock.wall += 10 * 86_400
    run(case.a.store.put_entry(b"mine again"))
    assert sorted(run(case.b.store.entries())) == [b"mine again", b"theirs"]
    (dead,) = (n for n in os.listdir(case.a.layout.entries) if _content(case, n) == b"theirs")
    os.utime(os.path.join(case.a.layout.entries, dead), (1, 1))
    run(case.a.store.put_entry(b"mine"))
    assert list(run(case.b.store.entries())) == [b"mine"]


def _content(case: Case, name: str) -> bytes:
    with open(os.path.join(case.a.layout.entries, name), "rb") as file:
        return file.read()
