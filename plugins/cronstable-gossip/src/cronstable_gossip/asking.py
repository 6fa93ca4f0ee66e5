"""Asking the peers why a job ran or did not, when somebody asks this node: the answers are shown and decide nothing.

It is kept from the exchange that elects: connections and places of its own, a second or two at most, and however often
this node is asked, its peers are asked a bounded number of times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import anyio

from cronstable.api import Clock, Json, NodeDecisions, Seconds
from cronstable_gossip.decisions import JOB_BYTES, MOST_DECISIONS, askable, parse
from cronstable_gossip.model import Peer
from cronstable_gossip.payload import BadReport
from cronstable_gossip.wire import NotTold, Transport

DEADLINE: Final[Seconds] = 2.0
"""For all peers together, since they are asked at once."""
ROUNDS: Final = 4
"""Rounds under way at once."""
RATE: Final = 50.0
"""Questions a second over all peers, in the long run."""
BURST: Final[Seconds] = 2.0
"""How far ahead of the rate a round may begin."""
BUSY: Final = "not asked: this node asks the others too often already; try again in a few seconds"


@dataclass(slots=True)
class _Round:
    """One question to everybody. ``answers``: None when whoever began it gave up."""

    over: anyio.Event = field(default_factory=anyio.Event)
    answers: tuple[NodeDecisions, ...] | None = None


class Asker:
    """``peers``: what is known of them now. ``name``: of this node; no other may speak under it."""

    def __init__(self, clock: Clock, transport: Transport, peers: Callable[[], Sequence[Peer]], name: str) -> None:
        self._clock = clock
        self._transport = transport
        self._peers = peers
        self._name = name
        self._under_way: dict[tuple[str, int], _Round] = {}
        self._paid_until = float("-inf")

    async def ask(self, job: str, limit: int) -> tuple[NodeDecisions, ...]:
        """A line for each other node. Whoever asks the same while it is being asked gets the same answer."""
        key = (job, max(1, min(limit, MOST_DECISIONS)))
        while (other := self._under_way.get(key)) is not None:
            await other.over.wait()
            if other.answers is not None:
                return other.answers
        peers = self._others()
        problems = self._unasked(peers, job)
        asked = [index for index in peers if index not in problems]
        if asked and not self._afford(len(asked)):
            problems |= dict.fromkeys(asked, BUSY)
            asked = []
        this = self._under_way[key] = _Round()
        try:
            found = await self._round(peers, asked, *key)
        finally:
            del self._under_way[key]
            this.over.set()
        found |= {index: _none(peers[index], why) for index, why in problems.items()}
        this.answers = tuple(found[index] for index in peers)
        return this.answers

    def _others(self) -> dict[int, Peer]:
        """The other nodes, by index, each once: one may be configured under several addresses."""
        found: dict[str, tuple[int, Peer]] = {}
        for index, peer in enumerate(self._peers()):
            key = peer.instance_id or f"host:{peer.host}"
            if not peer.is_self and (key not in found or (peer.fresh and not found[key][1].fresh)):
                found[key] = (index, peer)
        return dict(sorted(found.values(), key=lambda one: one[0]))

    def _unasked(self, peers: Mapping[int, Peer], job: str) -> dict[int, str]:
        """Whom there is no use in asking, and why."""
        names = Counter(peer.node_name for peer in peers.values() if peer.fresh)
        found: dict[int, str] = {}
        for index, peer in peers.items():
            if not peer.fresh:
                found[index] = f"not in contact: {peer.last_error}" if peer.last_error else "not in contact"
            elif peer.node_name == self._name or names[peer.node_name] > 1:
                found[index] = f"not asked: more than one node calls itself {peer.node_name}"
            elif not askable(job):
                found[index] = f"not asked: the name of the job is longer than {JOB_BYTES} bytes"
        return found

    def _afford(self, questions: int) -> bool:
        now = self._clock.now().boot
        if len(self._under_way) >= ROUNDS or self._paid_until > now + BURST:
            return False
        self._paid_until = max(self._paid_until, now) + questions / RATE
        return True

    async def _round(
        self, peers: Mapping[int, Peer], asked: Sequence[int], job: str, limit: int
    ) -> dict[int, NodeDecisions]:
        found: dict[int, NodeDecisions] = {}

        async def one(index: int) -> None:
            found[index] = await self._ask(index, peers[index], job, limit)

        async with anyio.create_task_group() as questions:
            for index in asked:
                questions.start_soon(one, index)
        return found

    async def _ask(self, index: int, peer: Peer, job: str, limit: int) -> NodeDecisions:
        rows: tuple[Mapping[str, Json], ...] = ()
        try:
            body = await self._transport.decisions(index, job, limit, DEADLINE)
            rows = parse(body, peer.node_name or "", limit)
        except NotTold:
            return _none(peer, "does not tell: it is of an older version")
        except (OSError, BadReport) as error:
            return _none(peer, str(error) or type(error).__name__)
        return NodeDecisions(peer.node_name, peer.host, rows)


def _none(peer: Peer, why: str) -> NodeDecisions:
    return NodeDecisions(peer.node_name, peer.host, problem=why)
