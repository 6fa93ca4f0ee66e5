"""Every system call of every operation fails once, or is the last one of its process: the lease stays whole."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cronstable.api import Grant, Held, Seen, StoreUnavailable, Unreadable, Vacant

MOST_CALLS = 60
"""More than any operation makes; each exhaustive test ends by itself at the first run in which nothing struck."""


class Case:
    """A directory where node ``a`` is about to do one thing, and ``b`` looks on."""

    def __init__(self, share: Any, operation: str) -> None:
        self.share, self.operation = share, operation
        self.a, self.b = share.node("a"), share.node("b")
        self.grant: Grant | None = None
        self.judged: Seen | None = None
        if operation == "takeover":
            share.node("old").win()
            self.judged = self.a.seen()
        elif operation in ("renew", "release", "mark"):
            self.grant = self.a.win()
        else:
            self.a.observe()
        self.b.observe()
        self.highest = self.fence_in_file()

    def act(self) -> Any:
        if self.operation in ("acquire", "takeover"):
            return self.a.acquire(over=self.judged, nonce="n-1")
        assert self.grant is not None
        if self.operation == "renew":
            return self.a.renew(self.grant, nonce="n-1")
        return self.a.release(self.grant, "run-1")

    def data(self) -> bytes | None:
        return self.share.lease.read_bytes() if self.share.lease.exists() else None

    def fence_in_file(self) -> int:
        match self.b.observe():
            case Seen(record):
                return record.fence
            case Vacant(fence):
                return fence or 0
            case other:
                raise AssertionError(other)

    def struck(self, start: int, step: int) -> bool:
        return len(self.a.disk.calls) >= start + step

    def successor_has_a_higher_fence(self) -> None:
        highest = self.fence_in_file()
        standing = self.b.observe()
        taken = self.b.win(over=standing if isinstance(standing, Seen) else None)
        assert taken.fence > highest
        assert taken.fence > self.highest


@pytest.mark.parametrize("operation", ["acquire", "takeover", "renew", "release"])
def test_a_call_that_fails_once_leaves_the_old_or_the_new_lease_and_an_honest_answer(
    make_share: Callable[[], Any], fail_at: Any, errnos: tuple[int, ...], operation: str
) -> None:
    for code in errnos:
        for step in range(1, MOST_CALLS):
            case = Case(make_share(), operation)
            before, start = case.data(), len(case.a.disk.calls)
            fail_at(case.a.disk, step, code)
            ambiguous: bool | None = None
            answer: Any = None
            try:
                answer = case.act()
            except StoreUnavailable as error:
                ambiguous = error.ambiguous
            struck = case.struck(start, step)
            case.a.disk.before = lambda n, name: None
            where = f"errno {code} at call {step}, {case.a.disk.calls[start:]}"
            if ambiguous is False:
                assert case.data() == before, where
            elif ambiguous is None and operation != "release":
                assert isinstance(answer, Held), where
                assert case.a.seen().record.nonce == "n-1", where
            elif ambiguous is None:
                assert isinstance(case.b.observe(), Vacant), where
            assert not isinstance(case.b.observe(), Unreadable), where
            assert len(case.share.litter()) <= 1, where
            assert case.a.disk.fds == set(), where
            assert case.share.server.owners == {}, where
            case.successor_has_a_higher_fence()
            if not struck:
                break
        else:
            raise AssertionError("the operation makes more calls than this test looks at")


@pytest.mark.parametrize("effective", [False, True], ids=["before the call", "after the call"])
@pytest.mark.parametrize("operation", ["acquire", "takeover", "renew", "release"])
def test_a_process_that_dies_at_any_call_leaves_a_lease_that_can_be_taken_over(
    make_share: Callable[[], Any], die_at: Any, died: type[BaseException], operation: str, effective: bool
) -> None:
    for step in range(1, MOST_CALLS):
        case = Case(make_share(), operation)
        before, start = case.data(), len(case.a.disk.calls)
        die_at(case.a.disk, step, effective)
        try:
            case.act()
        except died:
            pass
        else:
            assert not case.struck(start, step)
            break
        assert case.data() == before or not isinstance(case.b.observe(), Unreadable)
        assert len(case.share.litter()) <= 1
        case.successor_has_a_higher_fence()
    else:
        raise AssertionError("the operation makes more calls than this test looks at")


@pytest.mark.parametrize("operation", ["acquire", "takeover", "renew"])
def test_locks_forgotten_by_the_server_at_any_call_never_make_two_holders(
    make_share: Callable[[], Any], operation: str
) -> None:
    """While ``a`` stands between two of its calls the server forgets its locks and ``b`` takes the lease."""
    double = []
    for step in range(1, MOST_CALLS):
        case = Case(make_share(), operation)
        start = len(case.a.disk.calls)
        won: list[Grant] = []

        def strike(n: int, name: str, case: Case = case, at: int = start + step, won: list[Grant] = won) -> None:
            if n != at:
                return
            case.share.server.forget()
            standing = case.b.observe()
            answer = case.b.acquire(over=standing if isinstance(standing, Seen) else None)
            assert isinstance(answer, Held)
            won.append(answer.grant)

        case.a.disk.before = strike
        answer: Any = None
        with contextlib.suppress(StoreUnavailable):
            answer = case.act()
        if not won:
            assert isinstance(answer, Held)
            break
        case.a.disk.before = lambda n, name: None
        # ``b`` took over what ``a`` had written already: then ``a`` held it first, and the later fence is higher.
        if isinstance(answer, Held):
            assert won[0].fence > answer.grant.fence
            double.append(case.a.disk.calls[start + step - 1 : start + step])
            assert isinstance(case.a.renew(answer.grant), Seen)
            continue
        # ``a`` does not lead now, and must not come back to its old term by renewing it either.
        old = case.grant or Grant(case.a.me, won[0].fence, "n-1", 15.0)
        again = case.a.renew(replace(old, tried=("n-1",)))
        assert not isinstance(again, Held), f"call {step}"
    else:
        raise AssertionError("the operation makes more calls than this test looks at")
    # What is left: b came after a's last look at the lock, that is, after a's write was over and read back.
    assert all(call in (["close"], ["unlock"], ["lock"], ["open"], ["read"]) for call in double), double


def test_a_term_that_may_have_been_covered_is_neither_renewed_nor_released(share: Any) -> None:
    a, b = share.node("a"), share.node("b")
    grant = a.win()

    def strike(n: int, name: str) -> None:
        if name == "replace":
            share.server.forget()
            b.win(over=b.seen())

    a.disk.before = strike
    with pytest.raises(StoreUnavailable, match="forgot our lock") as failure:
        a.renew(grant, nonce="covering")
    assert failure.value.ambiguous
    a.disk.before = lambda n, name: None
    assert b.seen().record.holder == a.me
    tried = replace(grant, tried=("covering",))
    answer = a.renew(tried)
    assert isinstance(answer, Seen)
    assert not tried.owns(answer.record)
    before = share.lease.read_bytes()
    a.release(tried)
    assert share.lease.read_bytes() == before


def test_who_was_overwritten_inside_its_own_section_learns_it_from_the_read_back(share: Any) -> None:
    a, b = share.node("a"), share.node("b")
    grant = a.win()

    def strike(n: int, name: str) -> None:
        if name == "replace":
            share.server.forget()
            b.win(over=b.seen())

    a.disk.after = strike
    answer = a.renew(grant)
    assert isinstance(answer, Seen)
    assert answer.record.holder == b.me


def test_a_lock_lost_before_the_write_is_simply_taken_again(share: Any) -> None:
    node = share.node("a")
    grant = node.win()
    forgotten: list[int] = []

    def strike(n: int, name: str) -> None:
        if name == "write" and not forgotten:
            share.server.forget()
            forgotten.append(n)

    node.disk.before = strike
    assert isinstance(node.renew(grant), Held)
    assert forgotten


def test_a_lock_file_that_was_replaced_is_noticed(share: Any) -> None:
    a = share.node("a")
    grant = a.win()
    replaced: list[int] = []

    def strike(n: int, name: str) -> None:
        if name == "write" and not replaced:
            share.lease.with_suffix(".lock").unlink()
            replaced.append(n)

    a.disk.before = strike
    assert isinstance(a.renew(grant), Held)
    assert replaced


def test_a_full_disk_costs_the_renewal_and_leaves_no_litter(share: Any, fail_at: Any) -> None:
    node = share.node("a")
    grant = node.win()

    def full(n: int, name: str) -> None:
        if name == "write":
            raise OSError(28, "No space left on device")

    node.disk.before = full
    for _ in range(5):
        with pytest.raises(StoreUnavailable, match="No space left on device") as failure:
            node.renew(grant)
        assert not failure.value.ambiguous
    assert share.litter() == []
    node.disk.before = lambda n, name: None
    assert isinstance(node.renew(grant), Held)


def test_another_nodes_write_is_noticed_even_when_a_third_one_has_the_lock_by_then(share: Any) -> None:
    """The second descriptor is refused, as it should be, but by somebody else's lock: only the bytes tell."""
    a, b, c = share.node("a"), share.node("b"), share.node("c")
    grant = a.win()
    strikes: list[int] = []

    def strike(n: int, name: str) -> None:
        if name == "write" and not strikes:
            share.server.forget()
            b.win(over=b.seen())
            fd = c.disk.open(c.layout.lock, os.O_RDWR)
            assert c.disk.lock(fd)
            strikes.append(fd)

    a.disk.before = strike
    answer = a.renew(grant)
    assert isinstance(answer, Seen)
    assert answer.record.holder == b.me
    assert share.litter() == []
    c.disk.close(strikes[0])


def test_a_lease_deleted_while_the_clocks_are_wrong_does_not_lower_the_fence_for_who_saw_it(share: Any) -> None:
    a, b = share.node("a"), share.node("b")
    first = a.win()
    b.observe()
    share.lease.unlink()
    b.clock.wall -= 10 * 365 * 86400
    assert b.win().fence > first.fence


def test_nobody_waits_for_a_cancelled_renewal_and_so_it_writes_nothing(share: Any) -> None:
    node = share.node("a")
    grant = node.win()
    before = share.lease.read_bytes()
    late: list[Callable[[], Any]] = []

    async def cancelled(call: Callable[[], Any], *, timeout: float, lane: str = "default") -> Any:
        late.append(call)
        raise GeneratorExit

    node.host.threads.run = cancelled
    with pytest.raises(GeneratorExit):
        node.renew(grant)
    late[0]()
    assert share.lease.read_bytes() == before
