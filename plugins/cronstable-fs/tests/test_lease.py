"""The lease store over one directory: what each call does when nothing, or one thing, goes wrong."""

from __future__ import annotations

import json
import os
import shutil
import stat
from dataclasses import replace
from typing import Any

import pytest

from cronstable.api import Held, Seen, StoreUnavailable, Unreadable, Vacant


def contents(share: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(share.lease.read_bytes())
    return document


def test_an_empty_directory_is_vacant_and_the_first_fence_is_the_unix_time(share: Any) -> None:
    node = share.node("a")
    assert node.observe() == Vacant(None)
    grant = node.win()
    assert grant.fence == 1_800_000_000
    assert grant.expires_at == node.clock.wall + 15.0


def test_the_lease_file_has_the_four_documented_keys_and_our_three(share: Any) -> None:
    node = share.node("a")
    grant = node.win()
    document = contents(share)
    assert document == {
        "name": "cluster/leader",
        "holder": f"a#{node.me.token}",
        "fence": grant.fence,
        "expiresAt": node.clock.wall + 15.0,
        "ttl": 15.0,
        "nonce": grant.nonce,
    }


def test_directories_are_private_and_so_are_files(share: Any) -> None:
    share.node("a").win()
    for folder in ("", "default", "default/leases", "default/tmp", "default/reboot"):
        assert stat.S_IMODE(os.stat(share.root / folder).st_mode) == 0o700, folder
    assert stat.S_IMODE(share.lease.stat().st_mode) == 0o600
    assert stat.S_IMODE(share.lease.with_suffix(".lock").stat().st_mode) == 0o600


def test_only_one_of_two_gets_a_vacant_lease(share: Any) -> None:
    a, b = share.node("a"), share.node("b")
    grant = a.win()
    answer = b.acquire()
    assert isinstance(answer, Seen)
    assert grant.owns(answer.record)


def test_an_expired_record_is_not_free_by_itself(share: Any) -> None:
    a, b = share.node("a"), share.node("b")
    a.win()
    b.clock.advance(3600)
    assert isinstance(b.acquire(), Seen)


def test_a_takeover_needs_the_very_bytes_that_were_judged(share: Any) -> None:
    a, b = share.node("a"), share.node("b")
    grant = a.win()
    judged = b.seen()
    assert isinstance(a.renew(grant), Held)
    refused = b.acquire(over=judged)
    assert isinstance(refused, Seen)
    taken = b.win(over=refused)
    assert taken.fence == grant.fence + 1
    lost = a.renew(grant)
    assert isinstance(lost, Seen)
    assert lost.record.holder == b.me


def test_a_takeover_of_a_lease_that_was_released_meanwhile_answers_vacant(share: Any) -> None:
    a, b = share.node("a"), share.node("b")
    grant = a.win()
    judged = b.seen()
    a.release(grant)
    assert b.acquire(over=judged) == Vacant(grant.fence)


def test_a_renewal_changes_the_nonce_and_the_expiry_and_keeps_the_fence(share: Any) -> None:
    node = share.node("a")
    grant = node.win()
    node.clock.advance(5)
    answer = node.renew(grant, nonce="second")
    assert isinstance(answer, Held)
    assert (answer.grant.nonce, answer.grant.fence, answer.grant.tried) == ("second", grant.fence, ())
    assert contents(share)["expiresAt"] == node.clock.wall + 15.0
    assert contents(share)["nonce"] == "second"


def test_a_clone_of_the_process_cannot_renew_what_the_other_renewed(share: Any) -> None:
    node = share.node("a")
    grant = node.win()
    assert isinstance(node.renew(grant), Held)
    answer = node.renew(grant)
    assert isinstance(answer, Seen)
    assert not grant.owns(answer.record)


def test_a_renewal_whose_answer_was_lost_is_recognised_by_its_nonce(share: Any) -> None:
    node = share.node("a")
    grant = node.win()
    assert isinstance(node.renew(grant, nonce="lost answer"), Held)
    answer = node.renew(replace(grant, tried=("lost answer",)), nonce="third")
    assert isinstance(answer, Held)


def test_a_release_keeps_the_file_the_fence_and_the_returned_runs(share: Any) -> None:
    a, b = share.node("a"), share.node("b")
    grant = a.win()
    a.release(grant, "run-1", "run-2")
    assert contents(share)["expiresAt"] == 0
    assert b.observe() == Vacant(grant.fence, ("run-1", "run-2"))
    assert b.win().fence == grant.fence + 1


def test_a_renewal_after_the_own_release_does_not_resurrect_the_lease(share: Any) -> None:
    node = share.node("a")
    grant = node.win()
    node.release(grant)
    assert node.renew(grant) == Vacant(grant.fence)


def test_a_release_of_what_another_holds_changes_nothing(share: Any) -> None:
    a, b = share.node("a"), share.node("b")
    grant = a.win()
    b.win(over=b.seen())
    before = share.lease.read_bytes()
    a.release(grant)
    assert share.lease.read_bytes() == before


def test_deleting_the_lease_file_does_not_lower_the_fence(share: Any) -> None:
    a, b = share.node("a"), share.node("b")
    first = a.win()
    share.lease.unlink()
    assert isinstance(a.renew(first), Vacant)
    b.clock.advance(20)
    assert b.win().fence > first.fence


def test_a_clock_that_went_back_does_not_lower_the_fence(share: Any) -> None:
    a, b = share.node("a"), share.node("b")
    first = a.win()
    b.clock.wall -= 10 * 365 * 86400
    assert b.win(over=b.seen()).fence == first.fence + 1


def test_a_record_with_the_four_documented_keys_is_understood(share: Any) -> None:
    a, b = share.node("a"), share.node("b")
    a.win()
    share.lease.write_text(
        json.dumps({"name": "cluster/leader", "holder": "other", "fence": 7, "expiresAt": 1.5, "region": "x"})
    )
    seen = b.seen()
    assert (seen.record.holder.name, seen.record.holder.token) == ("other", "")
    assert (seen.record.fence, seen.record.ttl, seen.record.nonce) == (7, 15.0, "")
    assert b.win(over=seen).fence > 7


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"holder": "x#1", "fence": 1}',
        b'{"holder": "x#1", "fence": true, "expiresAt": 5}',
        b'{"holder": "x#1", "fence": -1, "expiresAt": 5}',
        b'{"holder": "x#1", "fence": 1, "expiresAt": null}',
        b'{"holder": "x#1", "fence": 1, "expiresAt": NaN}',
        b'{"holder": "x#1", "fence": 1, "expiresAt": 1e999}',
        b'{"holder": "x#1", "fence": 1, "expiresAt": 5, "ttl": 0}',
        b'{"holder": "x#1", "fence": 1, "expiresAt": 5, "ttl": Infinity}',
        b'{"holder": "x#1", "fence": 1, "expiresAt": 1' + b"0" * 400 + b"}",
        b'{"holder": "x#1", "fence": 1, "expiresAt": 1e300}',
        b'{"holder": "x#1", "fence": 1, "expiresAt": 5, "ttl": 1' + b"0" * 400 + b"}",
        b'{"holder": "x#1", "fence": 9223372036854775808, "expiresAt": 5}',
        b'{"holder": "x#1", "fence": 1' + b"0" * 5000 + b', "expiresAt": 5}',
        b'{"holder": "", "fence": 1, "expiresAt": 5}',
        b'{"name": "another", "holder": "x#1", "fence": 1, "expiresAt": 5}',
        b'{"holder": "x#1", "fence": 1, "expiresAt": 5, "pad": "' + b"x" * 300_000 + b'"}',
    ],
)
def test_a_damaged_lease_file_is_never_free(share: Any, data: bytes) -> None:
    a, b = share.node("a"), share.node("b")
    grant = a.win()
    judged = b.seen()
    share.lease.write_bytes(data)
    assert isinstance(b.observe(), Unreadable)
    assert isinstance(b.acquire(), Unreadable)
    assert isinstance(b.acquire(over=judged), Unreadable)
    assert isinstance(a.renew(grant), Unreadable)
    a.release(grant)
    assert share.lease.read_bytes() == data


def test_a_lock_that_nobody_lets_go_ends_in_a_clear_error_and_nobody_takes_over(share: Any) -> None:
    a, b = share.node("a"), share.node("b")
    a.win()
    judged = b.seen()
    fd = a.disk.open(a.layout.lock, os.O_RDWR)
    assert a.disk.lock(fd)
    with pytest.raises(StoreUnavailable, match="frozen inside it, or its mount hangs") as failure:
        b.acquire(over=judged)
    assert not failure.value.ambiguous
    assert contents(share)["holder"] == str(a.me)


def test_a_lock_that_is_let_go_in_time_is_waited_for(share: Any) -> None:
    a, b = share.node("a"), share.node("b")
    b.observe()
    fd = a.disk.open(a.layout.lock, os.O_RDWR | os.O_CREAT)
    assert a.disk.lock(fd)
    refusals = iter([None, None])

    def let_go_after_two_refusals(n: int, name: str) -> None:
        if name == "lock" and next(refusals, "now"):
            a.disk.unlock(fd)

    b.disk.before = let_go_after_two_refusals
    assert b.win().fence


def test_a_mount_that_hangs_makes_the_store_unavailable(share: Any) -> None:
    node = share.node("a")
    grant = node.win()
    node.host.threads.hang.add("cronstable-fs")
    with pytest.raises(StoreUnavailable, match="no answer from the mount"):
        node.observe()
    with pytest.raises(StoreUnavailable, match="no answer from the mount"):
        node.renew(grant)


def test_a_thread_that_wakes_up_after_its_caller_gave_up_writes_nothing(share: Any, run: Any) -> None:
    node = share.node("a")
    grant = node.win()
    before = share.lease.read_bytes()
    late: list[Any] = []

    async def never(call: Any, *, timeout: float, lane: str = "default") -> Any:
        late.append(call)
        raise TimeoutError

    node.host.threads.run = never
    with pytest.raises(StoreUnavailable):
        node.renew(grant)
    assert len(late) == 1
    late[0]()
    assert share.lease.read_bytes() == before
    assert share.litter() == []


@pytest.mark.parametrize("step", range(1, 20))
def test_a_process_that_was_stopped_inside_the_section_does_not_write_after_its_time(share: Any, step: int) -> None:
    node = share.node("a")
    grant = node.win()
    before = share.lease.read_bytes()
    start = len(node.disk.calls)
    renamed_at = renewal_step(share, "replace")

    def stop(n: int, name: str) -> None:
        if n == start + step:
            node.clock.advance(60)

    node.disk.before = stop
    if step < renamed_at:
        with pytest.raises(StoreUnavailable):
            node.renew(grant)
        assert share.lease.read_bytes() == before
    else:
        # Only a stop between the last look at the clock and the rename itself is not caught: the lock guards that.
        node.renew(grant)


def renewal_step(share: Any, name: str) -> int:
    """At which of its calls, counted from 1, a renewal does ``name``: measured on a directory of its own."""
    other = type(share)(share.root.parent / "measured")
    node = other.node("a")
    grant = node.win()
    start = len(node.disk.calls)
    node.renew(grant)
    return int(node.disk.calls[start:].index(name)) + 1


def test_an_unmounted_share_is_no_vacancy_and_nothing_is_created_in_its_place(share: Any) -> None:
    node = share.node("a")
    grant = node.win()
    (share.root / "default").rename(share.root.parent / "elsewhere")
    for call in (node.observe, node.acquire, lambda: node.renew(grant)):
        with pytest.raises(StoreUnavailable, match="No such file"):
            call()
    assert os.listdir(share.root) == []


def test_directories_that_somebody_emptied_are_put_back(share: Any) -> None:
    node = share.node("a")
    first = node.win()
    for call in (node.observe, node.acquire):
        for folder in ("leases", "tmp", "reboot"):
            shutil.rmtree(share.root / "default" / folder)
        answer = call()
    assert answer.grant.fence > first.fence


def test_a_stale_handle_once_in_fifty_calls_costs_nothing(share: Any) -> None:
    node = share.node("a")
    grant = node.win()

    def stale(n: int, name: str) -> None:
        if n % 50 == 0 and name != "close":
            raise OSError(116, "Stale file handle")

    node.disk.before = stale
    for _ in range(100):
        answer = node.renew(grant)
        assert isinstance(answer, Held)
        grant = answer.grant
        assert isinstance(node.observe(), Seen)
    assert len(node.disk.calls) > 2000


def test_a_handle_that_stays_stale_is_reported(share: Any) -> None:
    node = share.node("a")
    node.win()

    def stale(n: int, name: str) -> None:
        if name == "read":
            raise OSError(116, "Stale file handle")

    node.disk.before = stale
    with pytest.raises(StoreUnavailable, match="Stale file handle"):
        node.observe()


def test_no_descriptor_stays_open(share: Any) -> None:
    node = share.node("a")
    grant = node.win()
    node.renew(grant)
    node.observe()
    node.release(grant)
    assert node.disk.fds == set()


def test_a_mount_without_hard_links_still_elects(share: Any) -> None:
    node = share.node("a")

    def no_links(n: int, name: str) -> None:
        if name == "link":
            raise OSError(1, "Operation not permitted")

    node.disk.before = no_links
    assert node.win().fence
    assert share.litter() == []


def test_directories_are_not_synced_on_windows(share: Any) -> None:
    node = share.node("a")
    node.store = node.fresh_store("win32")
    node.win()
    on_windows = node.disk.calls.count("fsync")
    other = type(share)(share.root.parent / "posix").node("a")
    other.win()
    assert other.disk.calls.count("fsync") == on_windows + 1
