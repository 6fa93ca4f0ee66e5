"""What is held back while runs start: all of it is done, in order, whatever becomes of a single piece."""

from __future__ import annotations

from functools import partial

import pytest

from cronstable.runtime.backlog import Backlog


def test_what_is_held_back_is_done_in_order_once_asked_for_and_then_everything_at_once() -> None:
    backlog, done = Backlog(), list[str]()
    backlog.hold()
    for job, what in (("a", "a1"), ("b", "b1"), ("a", "a2")):
        backlog.do(job, partial(done.append, what))
    assert done == []
    backlog.settle("a")
    assert done == ["a1", "a2"]
    backlog.release()
    backlog.do("a", lambda: done.append("a3"))
    assert done == ["a1", "a2", "b1", "a3"]


def test_a_piece_that_breaks_costs_no_other() -> None:
    backlog, done = Backlog(), list[str]()

    def breaks() -> None:
        raise RuntimeError("broken")

    backlog.hold()
    for work in (breaks, lambda: done.append("second")):
        backlog.do("a", work)
    with pytest.raises(RuntimeError, match="broken"):
        backlog.settle("a")
    backlog.release()
    assert done == ["second"]
