"""What an operator reads about the cluster in the log: each change once, not each round."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Final

from cronstable.api import PeerStatus
from cronstable_gossip.derive import Derived
from cronstable_gossip.model import Peer
from cronstable_gossip.payload import MOST_BYTES, Body

_LEVELS: Final = {
    PeerStatus.UNREACHABLE: logging.WARNING,
    PeerStatus.UNTRUSTED: logging.WARNING,
    PeerStatus.DRIFTED: logging.WARNING,
    PeerStatus.CONFLICT: logging.ERROR,
}


class Logbook:
    """Remembers what was said last.

    ``what``: the word before each line; ``decides``: whether a job hangs on it; ``elects``: whether anybody is elected.
    """

    def __init__(
        self, log: logging.Logger, name: str, what: str = "cluster", *, decides: bool = True, elects: bool = False
    ) -> None:
        self._log = log
        self._what = what
        self._decides = decides
        self._elects = elects
        self._name = name
        self._status: dict[str, PeerStatus] = {}
        self._conflict = False
        self._truncated = False
        self._said_two = False
        self._swapped: tuple[str, ...] = ()
        self._shed = False
        self._too_long = False
        self._odd: set[tuple[str, str]] = set()

    def note(self, peers: Iterable[Peer], found: Derived) -> None:
        """Say what changed since the last time."""
        peers = tuple(peers)
        self._say_two([peer.host for peer in peers if peer.is_self], found.size)
        for peer in peers:
            if self._status.get(peer.host, PeerStatus.UNKNOWN) is not peer.status:
                self._status[peer.host] = peer.status
                self._say_peer(peer)
        if found.conflict != self._conflict:
            self._conflict = found.conflict
            if found.conflict:
                facts = [*found.conflict_names, *map(str, found.conflicting_sizes), *found.conflicting_policies]
                rest = ", no Leader job runs here until it ends" if self._decides else ""
                self._log.error("%s: conflict%s: %s", self._what, rest, "; ".join(facts))
            else:
                self._log.info("%s: the conflict is over", self._what)
        if found.swapped != self._swapped:
            self._swapped = found.swapped
            for text in found.swapped:
                self._log.warning("%s: nodes list different members of the same number: %s", self._what, text)
        if bool(found.truncated) != self._truncated:
            self._truncated = bool(found.truncated)
            if found.truncated:
                self._log.warning("%s: %d candidates are more than are advertised", self._what, found.truncated)

    def note_body(self, body: Body) -> None:
        """Say when what peers are told is cut short, or will be refused by them."""
        if body.shed != self._shed:
            self._shed = body.shed
            if body.shed:
                self._log.warning(
                    "%s: run summaries are left out of what peers are told, they are too long", self._what
                )
        if body.too_long != self._too_long:
            self._too_long = body.too_long
            if body.too_long:
                self._log.error(
                    "%s: what peers are told is over %d bytes, they will drop this node", self._what, MOST_BYTES
                )

    def note_odd(self, host: str, error: Exception) -> None:
        """Say, with its traceback, what a peer's answer met that nobody had thought of; each kind once a peer."""
        kind = (host, type(error).__name__)
        if kind not in self._odd:
            self._odd.add(kind)
            self._log.error("%s: the answer of %s cannot be read, this is our error", self._what, host, exc_info=error)

    def _say_two(self, own: Collection[str], size: int) -> None:
        """Two that elect are refused by the configuration, unless a list that names its own node hides it."""
        if self._elects and size == 2 and own and not self._said_two:
            self._said_two = True
            self._log.warning(
                "%s: THIS CLUSTER HAS TWO NODES ONLY: %s under `peers` is this node itself. Both must be up, and any "
                "single failure stops all Leader jobs; add a third node, and take this one out of its own list",
                self._what,
                ", ".join(own),
            )

    def _say_peer(self, peer: Peer) -> None:
        level = _LEVELS.get(peer.status, logging.INFO)
        detail = f": {peer.last_error}" if peer.last_error else ""
        self._log.log(level, "%s: %s (%s) is %s%s", self._what, peer.host, peer.node_name or "?", peer.status, detail)
