"""One claim log of a running election: the store's side of it, the machine, and the entries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cronstable.core.claim_session import Session
from cronstable.core.clock import Clock
from cronstable.core.handover import Handover
from cronstable.core.job import Json
from cronstable.core.sweep import Mode, auto_window
from cronstable.core.values import dataclass
from cronstable.plugin.protocols import Claims, Ids
from cronstable.runtime.handover import Entries
from cronstable.runtime.launcher import Launcher


@dataclass(frozen=True, slots=True)
class Bound:
    """A session with what it is bound to, from the start of an election to its end."""

    claims: Claims
    session: Session
    entries: Entries


def bind(
    claims: Claims,
    catch_up: Mapping[str, Json],
    launcher: Launcher,
    clock: Clock,
    ids: Ids,
    token: str,
    former: Iterable[str],
) -> Bound:
    """Begin with ``claims``. ``token``: of this process and this election; ``former``: of those that it had before."""
    given, limit = catch_up.get("window", "auto"), catch_up.get("limit", 100)
    handover = Handover(token, claims.ttl, former)
    session = Session(
        launcher.node,
        token,
        handover,
        window=float(given) if isinstance(given, int | float) else auto_window(claims.worst_handover),
        mode=Mode(str(catch_up.get("mode", "all"))),
        limit=limit if isinstance(limit, int) else 100,
    )
    return Bound(claims, session, Entries(claims, session, launcher, clock, ids))
