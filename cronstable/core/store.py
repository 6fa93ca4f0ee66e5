"""What passes between the host and a lease store: holders, grants, observations, claim outcomes. Values only."""

from __future__ import annotations

from typing import TypeAlias

from cronstable.core.clock import Seconds
from cronstable.core.values import dataclass


class StoreUnavailable(Exception):
    """The store could not be asked, or gave no usable answer. The only exception that may leave a store.

    ``ambiguous``: True when a write may have been committed although no answer came.
    """

    def __init__(self, message: str, *, ambiguous: bool = False) -> None:
        super().__init__(message)
        self.ambiguous = ambiguous


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds or wants a lease: a display name and a token that only this process has (never a host name)."""

    name: str
    token: str

    def __str__(self) -> str:
        return f"{self.name}#{self.token}"

    @classmethod
    def parse(cls, text: str) -> Holder:
        """Split ``name#token`` at the last ``#``; text without one is a foreign holder with an empty token."""
        name, sep, token = text.rpartition("#")
        return cls(name, token) if sep else cls(text, "")


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """A lease as it stands in the store.

    ``nonce`` is the mark of the last write: each write of a holder leaves one that only its process can have made.
    ``ttl`` is the one the holder STORED, in seconds; a challenger honours it, not its own.
    ``expires_at``: wall seconds by the holder's clock, where the store keeps one.
    ``mark`` stands for the exact bytes: equal marks mean that nothing was written in between.
    """

    holder: Holder
    fence: int
    nonce: str
    ttl: Seconds
    expires_at: float | None = None
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Grant:
    """One term of leadership as this process knows it. Immutable; a renewal gives a new one.

    ``fence`` grows with every term. ``nonce`` is the mark of the last write that is known to have landed;
    ``tried`` are the marks of later writes whose fate is unknown. ``ttl`` is what the store granted, in seconds.
    ``data`` belongs to the store (a lease id, a revision); the host hands it back untouched.
    """

    holder: Holder
    fence: int
    nonce: str
    ttl: Seconds
    expires_at: float | None = None
    tried: tuple[str, ...] = ()
    data: object = None

    def owns(self, record: LeaseRecord) -> bool:
        """True when ``record`` is this term's and its last write was made by this process."""
        return (
            record.holder.token == self.holder.token
            and record.fence == self.fence
            and (record.nonce == self.nonce or record.nonce in self.tried)
        )


@dataclass(frozen=True, slots=True)
class HeldTerm:
    """The term that this process holds. ``fence``: the lease's own, which tells terms apart.

    ``returned``: run ids that the holder before claimed, did not start, and gave back when it let go.
    """

    fence: int
    returned: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Held:
    """Our write landed and the lease is ours."""

    grant: Grant


@dataclass(frozen=True, slots=True)
class Seen:
    """The store holds this record. A read alone never makes a leader, whoever's name it bears."""

    record: LeaseRecord


@dataclass(frozen=True, slots=True)
class Vacant:
    """Nobody holds the lease: there is none, or it was released. ``fence``: the last one known to the store.

    ``returned``: run ids that the last holder claimed but did not start (claims.md, rule 7).
    """

    fence: int | None = None
    returned: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The store answered, but not with a lease (torn, garbage, another version). Never free, never contact."""

    detail: str


Observation: TypeAlias = Held | Seen | Vacant | Unreadable


@dataclass(frozen=True, slots=True)
class Won:
    """The append landed under this term. ``at``: the store's own clock then, wall seconds, None where it has none."""

    at: float | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """That number exists already; ``record`` is what stands there, byte for byte, empty when it was trimmed away."""

    record: bytes


@dataclass(frozen=True, slots=True)
class Fenced:
    """The term is over: nothing was written."""


@dataclass(frozen=True, slots=True)
class Full:
    """The log has no room without dropping what must be kept: nothing was written. ``at``: see ``Won``."""

    at: float | None = None


@dataclass(frozen=True, slots=True)
class Unknown:
    """No answer came: the write may have landed, or may land still."""

    detail: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """Where a claim log begins and ends, as far as the store can tell: a hint, since a listing may lag.

    ``first``, ``last``: numbers of the first record that was not trimmed away and of the last one, 0 for no log.
    ``at``: the store's own clock, wall seconds, None where it has none.
    """

    first: int
    last: int
    at: float | None = None


Appended: TypeAlias = Won | Taken | Fenced | Full | Unknown
