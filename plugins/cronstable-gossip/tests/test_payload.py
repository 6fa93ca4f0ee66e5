"""What peers say is parsed within every cap; nothing odd is believed, and nothing makes it crash."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from cronstable_gossip import payload
from cronstable_gossip.model import Claim, Member, Reading, Report, Seen
from cronstable_gossip.node import Node, Timing
from cronstable_gossip.payload import MOST_BYTES, BadReport, build, parse, sane_etag, unzip
from cronstable_gossip.summaries import fleet, own_entry
from hypothesis import example, given, settings
from hypothesis import strategies as st

GOOD: dict[str, Any] = {"node_name": "b", "job_set_id": "v1:0", "scheme_version": "v1", "instance_id": "i-b"}
FULL = Report(
    "b",
    "v1:0",
    "v1",
    "i-b",
    3,
    "spread",
    True,
    (Member("b", "i-b", True), Member("a", "i-a", False)),
    frozenset({"a"}),
    frozenset({"c", "d"}),
    frozenset({"warm-up"}),
    Claim.LEADING,
    frozenset({"e"}),
    {"j": {"running": 1, "enabled": True, "scheduled_in": 3.5, "last": None}},
)


def body(**changes: Any) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


def test_what_is_built_is_parsed_to_the_same() -> None:
    parsed = parse(build(FULL, 100.0).content)
    assert replace(parsed, summaries=None) == replace(FULL, summaries=None)
    assert parsed.summaries == FULL.summaries


def test_a_report_of_an_older_build_is_no_evidence_against_it() -> None:
    assert parse(json.dumps({k: GOOD[k] for k in ("node_name", "job_set_id", "scheme_version")}).encode()) == Report(
        "b", "v1:0", "v1"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"node_name": ""},
        {"node_name": "   "},
        {"node_name": None},
        {"node_name": 7},
        {"node_name": "x" * 257},
        {"node_name": "é" * 129},
        {"node_name": "a\x00b"},
        {"node_name": "a\nb"},
        {"node_name": "\ud800"},
        {"job_set_id": ""},
        {"scheme_version": []},
        {"instance_id": ""},
        {"instance_id": {}},
        {"cluster_size": 0},
        {"cluster_size": True},
        {"cluster_size": 2.5},
        {"cluster_size": 10**30},
        {"elect_leader": 1},
        {"elect_leader": "true"},
        {"distribution": ""},
        {"claim": "emperor"},
        {"claim": []},
        {"members": {}},
        {"members": "abc"},
    ],
    ids=str,
)
def test_an_odd_value_that_elections_read_refuses_the_whole_report(change: dict[str, Any]) -> None:
    with pytest.raises(BadReport):
        parse(body(**change))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"{",
        b'{"node_name": NaN}',
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"0" * (MOST_BYTES + 1),
        b'{"cluster_size": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_what_is_no_json_object_is_refused(text: bytes) -> None:
    with pytest.raises(BadReport):
        parse(text)


def test_bad_entries_of_a_set_are_dropped_alone_and_the_rest_is_capped() -> None:
    names: list[Any] = ["c", "", 7, None, "\x00", ["d"], "x" * 300, "a"]
    assert parse(body(mutual_agreeing=names, quorate_vouched=names)).mutual_agreeing == {"a", "c"}
    assert parse(body(mutual_agreeing="abc")).mutual_agreeing == frozenset()
    many = [f"n{i:05}" for i in range(5000)]
    assert len(parse(body(mutual_agreeing=many)).mutual_agreeing) == payload.SET_ENTRIES
    assert parse(body(mutual_agreeing=many[::-1])) == parse(body(mutual_agreeing=many))
    assert len(parse(body(ran_reboot_jobs=many)).ran_reboot_jobs) == 512
    assert parse(body(ran_reboot_jobs=["j" * 129])).ran_reboot_jobs == frozenset()


def test_members_without_a_name_are_dropped_and_agreed_means_true() -> None:
    lines: list[Any] = [
        {"node_name": "a", "instance_id": "i", "agreed": True},
        {"node_name": "c", "instance_id": "i2", "agreed": 1},
        {"node_name": "", "instance_id": "i3", "agreed": True},
        {"node_name": "d", "instance_id": 4, "agreed": True},
        "e",
    ]
    assert parse(body(members=lines)).members == (Member("a", "i", True), Member("c", "i2", False))


@pytest.mark.parametrize(
    "summary",
    [
        7,
        {},
        {"running": True, "enabled": True, "scheduled_in": None},
        {"running": 0, "enabled": 1, "scheduled_in": None},
        {"running": 0, "enabled": True, "scheduled_in": "soon"},
    ],
    ids=str,
)
def test_a_malformed_summary_is_no_data_and_the_report_still_counts(summary: Any) -> None:
    parsed = parse(body(job_summaries={"j": summary}))
    assert parsed.node_name == "b"
    assert parsed.summaries == {}
    assert parse(body(job_summaries=[])).summaries is None


@pytest.mark.parametrize("odd", [[], {}, ["success"], {"success": 1}, None, True, 7, 1.5, "", "\ud800"], ids=repr)
def test_an_odd_outcome_is_no_last_run_and_the_summary_still_counts(odd: Any) -> None:
    summary = {"running": 0, "enabled": True, "scheduled_in": None, "last": {"outcome": odd}}
    assert parse(body(job_summaries={"j": summary})).summaries == {"j": {**summary, "last": None}}


def test_infinite_numbers_are_no_data() -> None:
    huge = body(job_summaries={"j": {"running": "HUGE", "enabled": True}}).replace(b'"HUGE"', b"1e999")
    assert parse(huge).summaries == {}
    assert payload.parse_stats('{"cpu_percent": 1e999, "mem_percent": true, "cpu_count": 4}') == {"cpu_count": 4}


@pytest.mark.parametrize("header", ["", "{", "[]", "x" * 1025, '{"cpu_percent": "much"}', "\ud800"])
def test_odd_stats_are_no_stats(header: str) -> None:
    assert payload.parse_stats(header) == {}


def test_stats_survive_the_header() -> None:
    stats = {"cpu_percent": 1.5, "cpu_count": 4.0, "mem_percent": 0.0}
    assert payload.parse_stats(payload.build_stats(stats)) == stats


# -- tags and encodings -----------------------------------------------------------------------------------------------


def test_the_tag_ignores_that_a_countdown_counts_and_sees_everything_else() -> None:
    later = replace(FULL, summaries={"j": {"running": 1, "enabled": True, "scheduled_in": 1.5, "last": None}})
    assert build(FULL, 100.0).etag == build(later, 102.0).etag
    assert build(FULL, 100.0).etag != build(later, 100.0).etag
    assert build(FULL, 100.0).etag != build(replace(FULL, claim=Claim.NONE), 100.0).etag
    assert build(FULL, 100.0).etag != build(replace(FULL, quorate_vouched=frozenset({"c"})), 100.0).etag
    assert sane_etag(build(FULL, 0.0).etag) == build(FULL, 0.0).etag


@pytest.mark.parametrize("tag", [None, "", '""', "abc", 'W/"abc"', '"' + "a" * 127 + '"', '"a"b"', '"a\x01"', '"é"'])
def test_a_junk_tag_is_no_tag(tag: str | None) -> None:
    assert sane_etag(tag) is None


def test_a_body_is_unpacked_up_to_the_cap_and_never_beyond() -> None:
    assert unzip(gzip.compress(b"x" * 1000), "gzip") == b"x" * 1000
    assert len(unzip(gzip.compress(b"\0" * 50_000_000), "gzip")) == MOST_BYTES + 1
    for bad, encoding in ((b"no", "gzip"), (gzip.compress(b"x" * 1000)[:-9], "gzip"), (b"", "gzip"), (b"", "br")):
        with pytest.raises(BadReport):
            unzip(bad, encoding)


def test_a_body_that_is_too_long_sheds_its_summaries_and_then_says_so() -> None:
    summary: Any = {"running": 1, "enabled": True, "scheduled_in": None, "last": None}
    fat = replace(FULL, summaries={f"{'x' * 120}{i}": summary for i in range(3000)})
    shed = build(fat, 0.0)
    assert (shed.shed, shed.too_long) == (True, False)
    assert parse(shed.content).truncated
    lines = tuple(Member(f"{'x' * 200}{i}", "i", True) for i in range(2000))
    assert build(replace(fat, members=lines), 0.0).too_long


def test_the_largest_advertised_sets_fit_half_the_cap() -> None:
    names = frozenset(f"{i:04}{'n' * 252}" for i in range(512))
    assert len(build(replace(FULL, quorate_vouched=names), 0.0).content) < MOST_BYTES * 0.52


# -- fuzz -------------------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=20,
)
FIELDS = [
    *("node_name", "job_set_id", "scheme_version", "instance_id", "cluster_size", "distribution", "elect_leader"),
    *("members", "claim", "mutual_agreeing", "quorate_vouched", "ran_reboot_jobs", "waiting_for"),
    *("job_summaries", "job_summaries_truncated"),
]


@given(st.binary(max_size=300))
@example(b"\x1f\x8b")
def test_any_bytes_are_a_report_or_refused(data: bytes) -> None:
    for encoding in (None, "gzip"):
        try:
            parse(unzip(data, encoding))
        except BadReport:
            continue
    assert all(key in payload.NODE_STATS for key in payload.parse_stats(data.decode("latin-1")))


@given(st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_any_values_are_a_report_with_sane_names_or_refused(changes: dict[str, Any]) -> None:
    text = json.dumps({**GOOD, **changes}).encode()
    try:
        parsed = parse(text)
    except BadReport:
        return
    names = [parsed.node_name, parsed.job_set_id, *parsed.mutual_agreeing, *parsed.quorate_vouched]
    names += [member.node_name for member in parsed.members or ()]
    assert all(name.strip() and name.isprintable() and len(name.encode()) <= 256 for name in names)
    assert parse(build(parsed, 0.0).content).mutual_agreeing == parsed.mutual_agreeing


ODD: list[Any] = [
    *(None, True, False, 0, -1, 2.5, 1e308, 10**400, "", " ", "odd", "x" * 300, "\ud800", "a\nb"),
    *([], [[]], ["success"], [{}], {}, {"odd": {}}),
]
"""Of every type that JSON has."""
GOOD_LAST = {"outcome": "success", "finished_at": "2026-01-01T00:00:00+00:00", "duration": 1.5, "exit_code": 0}
SUMMARY = {"running": 1, "enabled": True, "scheduled_in": 3.5, "last": GOOD_LAST}
WHOLE: dict[str, Any] = {
    **GOOD,
    "cluster_size": 3,
    "distribution": "single-leader",
    "elect_leader": True,
    "members": [{"node_name": name, "instance_id": f"i-{name}", "agreed": True} for name in "abd"],
    "mutual_agreeing": ["a", "d"],
    "quorate_vouched": ["d"],
    "ran_reboot_jobs": ["warm-up"],
    "claim": "leading",
    "waiting_for": ["e"],
    "job_summaries": {"j": SUMMARY},
    "job_summaries_truncated": False,
}
FIGURES = dict.fromkeys(payload.NODE_STATS, 1.5)


def one_odd_place(value: Any) -> Iterator[Any]:
    """``value`` with everything that it is made of, and itself, in turn as odd as it can be, or missing."""
    yield from ODD
    if isinstance(value, dict):
        for key in value:
            yield {other: value[other] for other in value if other != key}
            yield from ({**value, key: odd} for odd in one_odd_place(value[key]))
    elif isinstance(value, list):
        for i, entry in enumerate(value):
            yield from ([*value[:i], odd, *value[i + 1 :]] for odd in one_odd_place(entry))


def hear(node: Node, now: float, answer: Any, figures: Any) -> None:
    """From the bytes of an answer to all that follows from it here: what is concluded, told and shown."""
    node.show(0, Reading(payload.parse_stats(json.dumps(figures)), now))
    try:
        report = parse(json.dumps(answer).encode())
    except BadReport:
        return
    node.beat(now)
    node.polled(0, Seen(report, now, now), now)
    node.settle(now)
    node.called(report.instance_id or "i", now)
    assert node.view(now).cluster_size <= 3
    assert parse(build(node.report(now, report.summaries), now).content).node_name == "a"
    nodes = fleet(own_entry("a", "a:1", now, {}, truncated=False), node.peers, now)
    assert json.dumps([dict(entry) for entry in nodes], allow_nan=False).encode()


@pytest.mark.parametrize("distribution", ["single-leader", "spread"])
def test_an_answer_that_is_odd_in_any_one_place_is_taken_in_concluded_from_told_and_shown_or_refused(
    make_me: Any, distribution: str
) -> None:
    node = Node(make_me("a", distribution=distribution), ["b:1", "c:1"], Timing(1.0, 2.0), now=0.0)
    odd = list(one_odd_place({**WHOLE, "distribution": distribution}))
    assert len(odd) > 700
    for turn, answer in enumerate(odd):
        hear(node, turn / 10, answer, FIGURES)
    for turn, figures in enumerate(one_odd_place(FIGURES)):
        hear(node, len(odd) + turn / 10, WHOLE, figures)


@settings(max_examples=60)
@given(st.data())
def test_an_answer_that_is_odd_in_many_places_is_so_too(make_me: Any, data: st.DataObject) -> None:
    def drawn(value: Any) -> Any:
        how = data.draw(st.integers(0, 11))
        if how == 0:
            return data.draw(st.sampled_from(ODD) | JSON)
        if isinstance(value, dict):
            return {key: drawn(inner) for key, inner in value.items()}
        return [drawn(inner) for inner in value] if isinstance(value, list) else value

    node = Node(make_me("a"), ["b:1", "c:1"], Timing(1.0, 2.0), now=0.0)
    for turn in range(4):
        hear(node, turn / 10, {**WHOLE, **{key: drawn(WHOLE[key]) for key in WHOLE if key not in GOOD}}, drawn(FIGURES))


@given(st.dictionaries(st.sampled_from(["job_set_id", "names"]), JSON))
def test_any_push_is_names_or_refused(changes: dict[str, Any]) -> None:
    try:
        job_set_id, names = payload.parse_reboot_ran(json.dumps(changes).encode())
    except BadReport:
        return
    assert job_set_id
    assert all(0 < len(name.encode()) <= 128 for name in names)


FINITE = JSON.filter(lambda value: "NaN" not in (text := json.dumps(value)) and "Infinity" not in text)
LAST = st.fixed_dictionaries(
    {"outcome": FINITE | st.just("success")}, optional={"finished_at": FINITE, "duration": FINITE, "exit_code": FINITE}
)


@given(LAST)
@example({"outcome": []})
@example({"outcome": {}})
def test_any_values_of_a_last_run_are_shown_or_dropped_and_the_report_still_counts(last: Any) -> None:
    summary = {"running": 0, "enabled": True, "scheduled_in": None, "last": last}
    parsed = parse(body(job_summaries={"j": summary}))
    assert parsed.node_name == "b"
    assert parsed.summaries is not None
    shown = parsed.summaries["j"]
    assert isinstance(shown, dict)
    assert (shown["last"] is not None) == (last["outcome"] == "success")
