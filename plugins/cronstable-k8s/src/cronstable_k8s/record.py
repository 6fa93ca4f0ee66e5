"""What a Lease of the apiserver says, and what we write into one. Pure: JSON in, values and JSON out.

The spec is Kubernetes' own, as ``kubectl`` and client-go know it. What it has no field for is in annotations.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from cronstable.api import Grant, Holder, Json, LeaseRecord, Seconds, Seen, Vacant

PREFIX: Final = "cronstable.io/"
TERM: Final = f"{PREFIX}term"
"""``{"holder", "fence", "nonce", "returned"}``: who wrote last and as which term."""
CLAIMS: Final = f"{PREFIX}claims"
MARKS: Final = f"{PREFIX}reboot-ran"
ENTRY: Final = f"{PREFIX}unfinished-"
"""And the token of a process: what it still runs of a past term (claims.md 16)."""

BUDGET: Final = 192 * 1024
"""Bytes of all annotations, keys and values, that claims may bring them to; with ``SPARE`` 200 KiB (claims.md 8)."""

SMALL: Final = 2048
"""Bytes of a record that claims nothing: it may go 8 KiB further, since it is what makes room."""
SPARE: Final = 8 * 1024

LIMIT: Final = 248 * 1024
"""And what marks and entries may: they are few and small. The apiserver refuses more than 256 KiB."""

LARGEST_FENCE: Final = 2**62
"""No term comes near it, and jobs keep fences in columns of 64 bits. Taken for the truth, a larger one would stay."""


class Malformed(Exception):
    """This is no Lease."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A Lease as it was answered. ``at``: the server's clock then, wall seconds, None when it did not say."""

    document: Mapping[str, Json]
    at: float | None = None

    @classmethod
    def of(cls, document: Json, at: float | None = None) -> Lease:
        """From the answer's JSON. Raises ``Malformed``."""
        if not isinstance(document, Mapping) or document.get("kind") != "Lease":
            raise Malformed("the answer is not a Lease")
        lease = cls(document, at)
        if not lease.uid or not lease.version:
            raise Malformed("the answer is a Lease without uid or resourceVersion")
        return lease

    @property
    def uid(self) -> str:
        """Which object this is; a deleted one that was made again has another."""
        return _text(_mapping(self.document.get("metadata")).get("uid"))

    @property
    def version(self) -> str:
        """Its ``resourceVersion``."""
        return _text(_mapping(self.document.get("metadata")).get("resourceVersion"))

    @property
    def spec(self) -> Mapping[str, Json]:
        """Its ``spec``."""
        return _mapping(self.document.get("spec"))

    @property
    def annotations(self) -> Mapping[str, str]:
        """Its annotations."""
        found = _mapping(_mapping(self.document.get("metadata")).get("annotations"))
        return {key: value for key, value in found.items() if isinstance(value, str)}

    @property
    def holder(self) -> str:
        """``spec.holderIdentity``, empty when nobody holds it."""
        return _text(self.spec.get("holderIdentity"))

    @property
    def term(self) -> Mapping[str, Json]:
        """What our annotation says, empty when there is none that can be read."""
        return _object(self.annotations.get(TERM))

    @property
    def fence(self) -> int | None:
        """The last fence, None when it is not known."""
        fence = self.term.get("fence")
        if not isinstance(fence, int) or isinstance(fence, bool):
            return None
        return fence if 0 <= fence <= LARGEST_FENCE else None

    def shown(self, ttl: Seconds) -> Seen | Vacant:
        """What the host is told. ``ttl`` stands in for a duration that a foreign holder did not store."""
        if not self.holder:
            returned = self.term.get("returned")
            runs = returned if isinstance(returned, list) else []
            return Vacant(self.fence, tuple(run for run in runs if isinstance(run, str)))
        duration = self.spec.get("leaseDurationSeconds")
        stored = float(duration) if isinstance(duration, int) and not isinstance(duration, bool) else ttl
        nonce = self.term.get("nonce")
        if self.term.get("holder") != self.holder or not isinstance(nonce, str) or self.fence is None:
            # Written by something that knows nothing of our annotation: kubectl, client-go, an operator's editor.
            nonce = f"renewed {_text(self.spec.get('renewTime'))}"
        # No expiry: the holder's wall clock is for the reader of kubectl, a challenger goes by its own (claims.md).
        return Seen(LeaseRecord(Holder.parse(self.holder), self.fence or 0, nonce, stored, None, self._mark()))

    def _mark(self) -> str:
        """Stands for what makes up the term. Not the resourceVersion: that moves with every process's entry too."""
        return hashlib.sha256(
            json.dumps([self.uid, self.spec, self.annotations.get(TERM)], sort_keys=True).encode()
        ).hexdigest()

    def is_term(self, grant: Grant) -> bool:
        """Whether the term of ``grant`` lasts; a renewal may have changed the nonce since."""
        return self.holder == str(grant.holder) == self.term.get("holder") and self.fence == grant.fence

    def replaced(self, spec: Mapping[str, Json], annotations: Mapping[str, str | None]) -> dict[str, Json]:
        """The body of a PUT over this Lease: entries of ``spec`` and ``annotations`` replaced, None: removed.

        It carries uid and resourceVersion: without the uid, a PUT to a deleted Lease creates it again.
        """
        metadata: dict[str, Json] = dict(_mapping(self.document.get("metadata")))
        metadata.pop("managedFields", None)
        merged = {**_mapping(metadata.get("annotations")), **annotations}
        metadata["annotations"] = {key: value for key, value in merged.items() if value is not None}
        kept: dict[str, Json] = {key: value for key, value in {**self.spec, **spec}.items() if value is not None}
        return {**self.document, "metadata": metadata, "spec": kept}


def fresh(name: str, namespace: str, spec: Mapping[str, Json], annotations: Mapping[str, str]) -> dict[str, Json]:
    """The body of a POST. It must carry no resourceVersion."""
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": namespace, "annotations": dict(annotations)},
        "spec": {key: value for key, value in spec.items() if value is not None},
    }


def size(body: Mapping[str, Json]) -> int:
    """Bytes of the annotations of a body, as the apiserver counts them."""
    found = _mapping(_mapping(body.get("metadata")).get("annotations"))
    return sum(len(key.encode()) + len(_text(value).encode()) for key, value in found.items())


def held(grant: Grant, wall: float, *, transitions: int | None) -> dict[str, Json]:
    """The spec of a term. ``transitions``: how many terms there were, when this write begins one."""
    now = micro_time(wall)
    spec: dict[str, Json] = {
        "holderIdentity": str(grant.holder),
        "leaseDurationSeconds": max(1, int(grant.ttl)),
        "renewTime": now,
    }
    if transitions is not None:
        spec |= {"acquireTime": now, "leaseTransitions": transitions}
    return spec


def released() -> dict[str, Json]:
    """What a release takes out of the spec; duration and transitions stay."""
    return {"holderIdentity": None, "acquireTime": None, "renewTime": None}


def term_of(grant: Grant, returned: Sequence[str] | None = None) -> str:
    """The annotation of a term, or of one that was released, when ``returned`` is given."""
    if returned is not None:
        return json.dumps({"fence": grant.fence, "returned": list(returned)})
    return json.dumps({"holder": str(grant.holder), "fence": grant.fence, "nonce": grant.nonce})


def transitions_of(lease: Lease) -> int:
    """``spec.leaseTransitions``. It has 32 bits: with one that is full no write is taken, so it begins anew."""
    found = lease.spec.get("leaseTransitions")
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < 2**31 - 1 else 0


def micro_time(wall: float) -> str:
    """Wall seconds as Kubernetes' MicroTime: exactly six digits, or it is a 400."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def http_date(text: str | None) -> float | None:
    """Wall seconds of a ``Date`` header."""
    try:
        return None if text is None else parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def _object(text: str | None) -> Mapping[str, Json]:
    try:
        return _mapping(json.loads(text or "{}"))
    except (ValueError, RecursionError):
        return {}


def _mapping(value: object) -> Mapping[str, Json]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
