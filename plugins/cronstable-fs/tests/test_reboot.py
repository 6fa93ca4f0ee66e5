"""Reboot marks: at most one run per job and job-set id, whoever asks."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from cronstable.api import Held, StoreUnavailable


def mark(run: Any, node: Any, grant: Any, job: str, nonce: str, job_set: str = "set-1") -> bool:
    answer: bool = run(node.store.mark_reboot(grant, job_set, job, nonce=nonce))
    return answer


def marks(run: Any, node: Any, job_set: str = "set-1") -> frozenset[str]:
    names: frozenset[str] = run(node.store.reboot_marks(job_set))
    return names


def test_a_mark_is_made_once_and_read_by_everybody(share: Any, run: Any) -> None:
    a, b = share.node("a"), share.node("b")
    grant = a.win()
    assert marks(run, b) == frozenset()
    assert mark(run, a, grant, "Warm up", "n1")
    assert not mark(run, a, grant, "Warm up", "n2")
    assert marks(run, b) == {"Warm up"}
    assert marks(run, b, "set-2") == frozenset()
    assert share.litter() == []


def test_a_mark_whose_answer_was_lost_is_recognised_by_its_nonce(share: Any, run: Any) -> None:
    node = share.node("a")
    grant = node.win()
    assert mark(run, node, grant, "job", "n1")
    assert mark(run, node, grant, "job", "n1")


def test_a_node_whose_term_is_over_cannot_mark(share: Any, run: Any) -> None:
    a, b = share.node("a"), share.node("b")
    grant = a.win()
    b.win(over=b.seen())
    assert not mark(run, a, grant, "job", "n1")
    assert marks(run, b) == frozenset()


def test_a_released_term_cannot_mark(share: Any, run: Any) -> None:
    node = share.node("a")
    grant = node.win()
    node.release(grant)
    assert not mark(run, node, grant, "job", "n1")


def test_a_renewal_in_between_does_not_cost_the_mark(share: Any, run: Any) -> None:
    node = share.node("a")
    grant = node.win()
    assert isinstance(node.renew(grant), Held)
    assert mark(run, node, grant, "job", "n1")


def test_names_of_any_length_and_spelling_are_remembered(share: Any, run: Any) -> None:
    node = share.node("a")
    grant = node.win()
    names = {"x" * 250, "X" * 250, "nightly/Ünïcode.job", "a", "A", ".."}
    for name in names:
        assert mark(run, node, grant, name, f"n-{name}")
    assert marks(run, node) == names


def test_a_mark_that_cannot_be_written_is_reported_and_not_made(share: Any, run: Any, fail_at: Any) -> None:
    node = share.node("a")
    grant = node.win()

    def full(n: int, name: str) -> None:
        if name == "fsync":
            raise OSError(28, "No space left on device")

    node.disk.before = full
    with pytest.raises(StoreUnavailable, match="No space"):
        mark(run, node, grant, "job", "n1")
    node.disk.before = lambda n, name: None
    assert marks(run, node) == frozenset()
    assert share.litter() == []


def test_a_torn_mark_counts_as_made_by_somebody_else(share: Any, run: Any) -> None:
    node = share.node("a")
    grant = node.win()
    assert mark(run, node, grant, "job", "n1")
    (path,) = (share.root / "default" / "reboot" / "set-1").iterdir()
    path.write_bytes(b"{")
    assert not mark(run, node, grant, "job", "n1")
    assert marks(run, node) == {"job"}


def test_old_marks_are_dropped_oldest_first_but_never_those_of_the_live_job_set(share: Any, run: Any) -> None:
    node = share.node("a")
    grant = node.win()
    old = share.root / "default" / "reboot" / "set-0"
    old.mkdir()
    for number in range(520):
        path = old / f"job-{number:03}"
        path.write_bytes(b"{}")
        os.utime(path, (1_000_000 + number, 1_000_000 + number))
    for number in range(3):
        assert mark(run, node, grant, f"live-{number}", f"n{number}")
    live = share.root / "default" / "reboot" / "set-1"
    for path in live.iterdir():
        os.utime(path, (1, 1))
    assert len(marks(run, node)) == 3
    left = sorted(p.name for p in old.iterdir())
    assert len(left) == 512 - 3
    assert left[0] == "job-011"
    assert len(marks(run, node)) == 3


def test_a_failed_pruning_does_not_hide_the_marks(share: Any, run: Any) -> None:
    node = share.node("a")
    grant = node.win()
    assert mark(run, node, grant, "job", "n1")
    lists = []

    def strike(n: int, name: str) -> None:
        if name == "listdir":
            lists.append(n)
            if len(lists) > 1:
                raise OSError(5, "Input/output error")

    node.disk.before = strike
    assert marks(run, node) == {"job"}
    assert len(lists) == 2


def test_a_grant_of_another_fence_cannot_mark(share: Any, run: Any) -> None:
    node = share.node("a")
    grant = node.win()
    assert not mark(run, node, replace(grant, fence=grant.fence - 1), "job", "n1")
