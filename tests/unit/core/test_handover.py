"""How often a leader looks at what others say of runs that go on (claims.md 16)."""

from __future__ import annotations

import itertools
from types import MappingProxyType

from cronstable.core.handover import LOOK_EVERY, LOOK_OFTEN, Handover
from cronstable.core.unfinished import Entry, encode

TTL = 15.0
SAID = encode(Entry("other", "1", MappingProxyType({"run": "job"})))


def looks(handover: Handover, begin: float, seconds: int, found: list[bytes]) -> list[float]:
    """When a leader that asks ten times a second reads the entries, and finds these."""
    times = []
    for tenth in range(10 * seconds):
        boot = begin + tenth / 10
        if handover.is_look_due(boot):
            handover.looked(found, boot, boot)
            times.append(boot)
    return times


def test_a_leader_looks_often_while_somebody_who_lives_has_runs() -> None:
    handover = Handover("me", TTL)
    handover.begin(100.0)
    times = [
        at
        for second in range(60)
        for at in looks(handover, 100.0 + second, 1, [SAID.replace(b'"1"', b'"%d"' % second)])
    ]
    assert max(after - before for before, after in itertools.pairwise(times)) <= LOOK_OFTEN + 0.1


def test_what_a_dead_process_left_behind_is_not_looked_at_often_for_as_long_as_it_stands() -> None:
    handover = Handover("me", TTL)
    handover.begin(100.0)
    looks(handover, 100.0, int(TTL) + 1, [SAID])
    assert handover.is_quiet(117.0)
    times = looks(handover, 117.0, 3600, [SAID])
    assert len(times) <= 3600 / LOOK_EVERY + 1
    assert handover.started == {"run"}


def test_an_entry_that_changes_again_is_looked_at_often_again() -> None:
    handover = Handover("me", TTL)
    handover.begin(100.0)
    looks(handover, 100.0, 60, [SAID])
    assert handover.is_quiet(160.0)
    looks(handover, 160.0, 6, [SAID.replace(b'"1"', b'"2"')])
    assert not handover.is_quiet(166.0)
    assert handover.is_look_due(166.0 + LOOK_OFTEN)


def test_what_others_say_is_news_until_it_was_read() -> None:
    handover = Handover("me", TTL)
    handover.begin(100.0)
    assert handover.is_news([SAID], 100.0)
    handover.looked([SAID], 100.0, 100.0)
    assert not handover.is_news([SAID], 101.0)
    assert not handover.is_news([SAID, b"nothing that can be read"], 101.0)
    assert handover.is_news([SAID.replace(b'"1"', b'"2"')], 102.0)
    assert handover.is_news([], 102.0)
