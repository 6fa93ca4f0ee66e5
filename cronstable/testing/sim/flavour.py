"""How the lease of a backend behaves, as far as the state machines can tell: cadence, expiry, claims, bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from cronstable.core.clock import Seconds
from cronstable.core.lease import CHALLENGER_MARGIN
from cronstable.core.lease_values import LeaseTiming


@dataclass(frozen=True, slots=True)
class Flavour:
    """One lease backend. ``takeover``: within how long somebody leads once nothing is wrong any more (L1).

    ``expires_itself``: the store removes a dead holder's record. ``wall_expiry``: records carry the holder's wall
    clock. ``polls``: a waiting node asks again and again; else it watches. ``holds_all``: the claim log stands in the
    lease, and is gone when that is deleted.
    """

    name: str
    timing: LeaseTiming
    takeover: Seconds
    expires_itself: bool = False
    wall_expiry: bool = False
    polls: bool = True
    holds_all: bool = False

    @property
    def worst_handover(self) -> Seconds:
        """As the host's claim door says."""
        return 2 * self.timing.ttl + self.timing.renew_every + CHALLENGER_MARGIN


def _filesystem(ttl: Seconds, connect_timeout: Seconds, deadline: Seconds | None, retry: Seconds | None) -> Flavour:
    timing = LeaseTiming.for_ttl(ttl, connect_timeout)
    return Flavour("filesystem", timing, ttl + 1 + max(1.0, ttl / 3), wall_expiry=True)


def _etcd(ttl: Seconds, connect_timeout: Seconds, deadline: Seconds | None, retry: Seconds | None) -> Flavour:
    base = LeaseTiming.for_ttl(ttl, connect_timeout)
    timing = replace(base, op_timeout=base.round_deadline, watch=base.renew_every)
    return Flavour("etcd", timing, ttl + 2, expires_itself=True, polls=False)


def _kubernetes(ttl: Seconds, connect_timeout: Seconds, deadline: Seconds | None, retry: Seconds | None) -> Flavour:
    # leaseDurationSeconds 15, renewDeadlineSeconds 10, retryPeriodSeconds 2, in these proportions (reference 3.4).
    deadline = ttl * 2 / 3 if deadline is None else deadline
    retry = ttl * 2 / 15 if retry is None else retry
    timing = LeaseTiming(
        ttl=ttl,
        renew_every=retry,
        round_deadline=deadline,
        op_timeout=deadline,
        poll=min(0.3, retry),
        watch=min(2 * retry + 1, deadline),
    )
    return Flavour("kubernetes", timing, ttl + 1.2 * retry, polls=False, holds_all=True)


FLAVOURS: Final = MappingProxyType({"filesystem": _filesystem, "etcd": _etcd, "kubernetes": _kubernetes})
"""Backend to what makes its flavour: of a ttl, a connect timeout, and a renewal's deadline and period."""

DEFAULT_TTL: Final[Mapping[str, Seconds]] = MappingProxyType({"filesystem": 15.0, "etcd": 15.0, "kubernetes": 15.0})
