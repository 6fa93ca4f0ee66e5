"""What is said on ``GET /peer``: parsing with every cap of reference 6.3, and building within them. Pure.

Nothing that a peer sends is believed to be well-formed, small or honest. What the election reads is refused as a
whole when it is odd, which makes the peer unreachable: no evidence. Entries of a set are dropped one by one. What is
only shown is dropped alone.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, cast

from cronstable.api import Json
from cronstable_gossip.model import Claim, Member, Report

MOST_BYTES: Final = 262_144
"""Of a body, after decompression."""
NAME_BYTES: Final = 256
SET_ENTRIES: Final = 4096
REBOOT_NAME_BYTES: Final = 128
MOST_REBOOT_NAMES: Final = 512
MOST_SUMMARIES: Final = 512
SUMMARY_NAME_BYTES: Final = 128
TIMESTAMP_BYTES: Final = 64
ETAG_BYTES: Final = 128
STATS_BYTES: Final = 1024
GZIP_FROM: Final = 1024
"""Smaller bodies are sent as they are."""
NODE_STATS: Final = (
    "cpu_percent",
    "cpu_count",
    "mem_percent",
    "mem_used_bytes",
    "mem_total_bytes",
    "proc_rss_bytes",
    "proc_cpu_percent",
)
_OUTCOMES: Final = frozenset({"success", "failure", "cancelled", "unknown", "skipped"})


class BadReport(ValueError):
    """A peer's answer that is no observation; the text is for ``last_error``."""


# -- reading ----------------------------------------------------------------------------------------------------------


def parse(body: bytes) -> Report:
    """The report in ``body``. Raises ``BadReport`` for anything that the election could not trust."""
    if len(body) > MOST_BYTES:
        raise BadReport(f"the answer is longer than {MOST_BYTES} bytes")
    data = read_object(body)
    members = data.get("members")
    return Report(
        node_name=read_name(data, "node_name"),
        job_set_id=read_name(data, "job_set_id"),
        scheme_version=read_name(data, "scheme_version"),
        instance_id=read_name(data, "instance_id") if data.get("instance_id") is not None else None,
        cluster_size=_size(data.get("cluster_size")),
        distribution=read_name(data, "distribution") if data.get("distribution") is not None else None,
        elect_leader=_flag(data.get("elect_leader")),
        members=_members(members) if members is not None else None,
        mutual_agreeing=_names(data.get("mutual_agreeing"), NAME_BYTES, SET_ENTRIES),
        quorate_vouched=_names(data.get("quorate_vouched"), NAME_BYTES, SET_ENTRIES),
        ran_reboot_jobs=_names(data.get("ran_reboot_jobs"), REBOOT_NAME_BYTES, MOST_REBOOT_NAMES),
        claim=_claim(data.get("claim")),
        waiting_for=_names(data.get("waiting_for"), NAME_BYTES, SET_ENTRIES),
        summaries=_summaries(data.get("job_summaries")),
        truncated=data.get("job_summaries_truncated") is True,
    )


def parse_reboot_ran(body: bytes) -> tuple[str, frozenset[str]]:
    """``{job_set_id, names}`` of a ``POST /reboot-ran``. Raises ``BadReport``."""
    data = read_object(body)
    return read_name(data, "job_set_id"), _names(data.get("names"), REBOOT_NAME_BYTES, MOST_REBOOT_NAMES)


def parse_stats(header: str) -> Mapping[str, float]:
    """The node stats of a header; empty when they are odd."""
    if len(header) > STATS_BYTES:
        return MappingProxyType({})
    try:
        data = read_object(header.encode())
    except (BadReport, UnicodeEncodeError):
        return MappingProxyType({})
    return MappingProxyType({key: float(data[key]) for key in NODE_STATS if finite(data.get(key))})  # type: ignore[arg-type]


def sane_etag(tag: str | None) -> str | None:
    """A tag worth sending back, else None."""
    if tag is None or not 2 < len(tag) <= ETAG_BYTES or not (tag[0] == tag[-1] == '"'):
        return None
    return tag if tag.isascii() and tag.isprintable() and '"' not in tag[1:-1] else None


def unzip(body: bytes, encoding: str | None) -> bytes:
    """``body`` without its content encoding, never more than ``MOST_BYTES`` of it. Raises ``BadReport``."""
    if encoding in (None, "", "identity"):
        return body
    if encoding != "gzip":
        raise BadReport(f"the answer has the unknown encoding {encoding[:32]!r}")
    unpack = zlib.decompressobj(16 + zlib.MAX_WBITS)
    try:
        plain = unpack.decompress(body, MOST_BYTES + 1)
    except zlib.error as error:
        raise BadReport("the answer is no gzip") from error
    if not unpack.eof and len(plain) <= MOST_BYTES:
        raise BadReport("the answer ends in the middle")
    return plain


def read_object(body: bytes) -> dict[str, Json]:
    """The JSON object in ``body``. Raises ``BadReport``."""
    try:
        data = json.loads(body.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise BadReport("the answer is no JSON") from error
    if not isinstance(data, dict):
        raise BadReport("the answer is no JSON object")
    return data


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number")


def good_name(value: Json, most: int) -> bool:
    """Whether it is text that can be shown on a line, of ``most`` bytes at most."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        return False
    try:
        return len(value.encode()) <= most
    except UnicodeEncodeError:
        return False


def read_name(data: Mapping[str, Json], key: str) -> str:
    """The name at ``key``. Raises ``BadReport``."""
    value = data.get(key)
    if not good_name(value, NAME_BYTES):
        raise BadReport(f"`{key}` of the answer is missing, empty, too long or not printable")
    return cast("str", value)


def _size(value: Json) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= SET_ENTRIES:
        raise BadReport("`cluster_size` of the answer is no number of nodes")
    return value


def _flag(value: Json) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise BadReport("`elect_leader` of the answer is neither true nor false")
    return value


def _claim(value: Json) -> Claim:
    if value is None:
        return Claim.NONE
    try:
        return Claim(value)  # type: ignore[arg-type]
    except ValueError as error:
        raise BadReport("`claim` of the answer is unknown") from error


def _names(value: Json, most_bytes: int, most: int) -> frozenset[str]:
    """Good entries, at most ``most`` of them; which, does not depend on their order."""
    if not isinstance(value, list):
        return frozenset()
    return frozenset(sorted({cast("str", name) for name in value if good_name(name, most_bytes)})[:most])


def _members(value: Json) -> tuple[Member, ...]:
    if not isinstance(value, list):
        raise BadReport("`members` of the answer is no list")
    found: list[Member] = []
    for line in value[:SET_ENTRIES]:
        if not isinstance(line, dict) or not good_name(line.get("node_name"), NAME_BYTES):
            continue
        instance = line.get("instance_id")
        if instance is not None and not good_name(instance, NAME_BYTES):
            continue
        found.append(Member(str(line["node_name"]), cast("str | None", instance), line.get("agreed") is True))
    return tuple(found)


def finite(value: Json) -> bool:
    """Whether it is a number that can be calculated with."""
    return isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value)


def _is_finite(value: int | float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _summaries(value: Json) -> Mapping[str, Json] | None:
    if not isinstance(value, dict):
        return None
    good = {name: one for name, one in value.items() if good_name(name, SUMMARY_NAME_BYTES)}
    kept = ((name, _summary(good[name])) for name in sorted(good)[:MOST_SUMMARIES])
    return MappingProxyType({name: one for name, one in kept if one is not None})


def _summary(value: Json) -> Json:
    """One job's summary with nothing in it but what is documented; None when it is odd."""
    if not isinstance(value, dict):
        return None
    running, enabled, due = value.get("running"), value.get("enabled"), value.get("scheduled_in")
    if not finite(running) or not isinstance(enabled, bool) or not (due is None or finite(due)):
        return None
    return {"running": running, "enabled": enabled, "scheduled_in": due, "last": _last(value.get("last"))}


def _last(value: Json) -> Json:
    outcome = value.get("outcome") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(outcome, str) or outcome not in _OUTCOMES:
        return None
    at, duration, code = value.get("finished_at"), value.get("duration"), value.get("exit_code")
    return {
        "outcome": outcome,
        "finished_at": at if good_name(at, TIMESTAMP_BYTES) else None,
        "duration": duration if finite(duration) else None,
        "exit_code": code if finite(code) and isinstance(code, int) else None,
    }


# -- writing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Body:
    """A built answer. ``etag``: strong, and the same as long as nothing but a countdown changed."""

    content: bytes
    etag: str
    shed: bool = False
    too_long: bool = False


def build(report: Report, wall: float) -> Body:
    """``report`` as bytes. Summaries go first when it is too long; what is still too long will be dropped by peers."""
    body = _render(report_fields(report), report.summaries, report.truncated, wall)
    if len(body.content) <= MOST_BYTES or not report.summaries:
        return Body(body.content, body.etag, too_long=len(body.content) > MOST_BYTES)
    less = _render(report_fields(report), {}, True, wall)
    return Body(less.content, less.etag, shed=True, too_long=len(less.content) > MOST_BYTES)


def _render(fields: dict[str, Json], summaries: Mapping[str, Json] | None, truncated: bool, wall: float) -> Body:
    if summaries is not None:
        fields["job_summaries"] = dict(summaries)
        fields["job_summaries_truncated"] = truncated
    content = _dump(fields)
    if summaries:
        fields["job_summaries"] = {name: _absolute(one, wall) for name, one in summaries.items()}
        canonical = _dump(fields)
    else:
        canonical = content
    return Body(content, f'"{hashlib.sha256(canonical).hexdigest()}"')


def report_fields(report: Report) -> dict[str, Json]:
    """The fields of reference 6.2, without the summaries; sets are sorted, so that equal views have equal bytes."""
    return {
        "node_name": report.node_name,
        "job_set_id": report.job_set_id,
        "scheme_version": report.scheme_version,
        "instance_id": report.instance_id,
        "cluster_size": report.cluster_size,
        "distribution": report.distribution,
        "elect_leader": report.elect_leader,
        "members": [_line(member) for member in report.members or ()],
        "mutual_agreeing": _sorted(report.mutual_agreeing),
        "quorate_vouched": _sorted(report.quorate_vouched),
        "ran_reboot_jobs": _sorted(report.ran_reboot_jobs),
        "claim": report.claim.value,
        "waiting_for": _sorted(report.waiting_for),
    }


def build_reboot_ran(job_set_id: str, names: Iterable[str]) -> bytes:
    """The body of a ``POST /reboot-ran``."""
    return _dump({"job_set_id": job_set_id, "names": _sorted(names)})


def build_stats(stats: Mapping[str, float]) -> str:
    """The value of the node stats header."""
    return _dump({key: stats[key] for key in NODE_STATS if key in stats}).decode()


def advertised_reboot_names(names: Iterable[str]) -> Iterator[str]:
    """The names of a ran-set that fit the caps, lowest first."""
    return iter(sorted(name for name in names if good_name(name, REBOOT_NAME_BYTES))[:MOST_REBOOT_NAMES])


def _line(member: Member) -> Json:
    return {"node_name": member.node_name, "instance_id": member.instance_id, "agreed": member.agreed}


def _sorted(names: Iterable[str]) -> list[Json]:
    return [*sorted(names)]


def _absolute(summary: Json, wall: float) -> Json:
    if isinstance(summary, dict) and isinstance(due := summary.get("scheduled_in"), int | float):
        return {**summary, "scheduled_in": round(wall + due)}
    return summary


def _dump(data: Mapping[str, Json]) -> bytes:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
