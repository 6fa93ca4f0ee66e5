"""Claims, entries and @reboot marks inside the Lease: what the contract does not ask."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from cronstable_k8s import marks, record

from cronstable.api import Fenced, Full, Held, Seen, StoreUnavailable, Taken, Won
from cronstable.testing.clock import run_virtual


def story(function: Callable[[], Awaitable[None]]) -> None:
    run_virtual(function)


def noise(size: int, salt: int = 0) -> bytes:
    """Bytes that do not deflate."""
    return b"".join(hashlib.sha256(f"{salt}.{i}".encode()).digest() for i in range(size // 32))


def test_a_claim_carries_version_and_uid_so_that_a_stale_term_cannot_land_one(server: Any, node: Any) -> None:
    """Claims 1: the old leader slept through a takeover, and its request is still on the way."""

    async def main() -> None:
        api = server()
        one, two = node(api, "a"), node(api, "b")
        old = await one.win()
        seen = await two.store.observe()
        assert isinstance(seen, Seen)
        assert isinstance(await two.store.acquire(two.me, 15.0, nonce="n2", over=seen), Held)
        assert await one.store.append(old, 1, b"claim") == Fenced()
        assert await two.store.read(1) is None

    story(main)


def test_clones_of_one_machine_tell_their_claims_apart_by_the_record(server: Any, node: Any) -> None:
    """Claims 4: same token, same term, both append number 1; the second one reads the first one's record."""

    async def main() -> None:
        api = server()
        one = node(api, "a")
        grant = await one.win()
        clone = node(api, "a")
        await clone.store.observe()
        assert isinstance(await clone.store.append(grant, 1, b"nonce of the clone"), Won)
        assert await one.store.append(grant, 1, b"nonce of the other") == Taken(b"nonce of the clone")

    story(main)


def test_a_full_lease_fails_closed_and_a_trim_makes_room(server: Any, node: Any) -> None:
    """Claims 8: below 200 KiB, and never a record dropped on the quiet."""

    async def main() -> None:
        api = server()
        one = node(api, "a")
        grant = await one.win()
        number = 1
        while isinstance(await one.store.append(grant, number, noise(20_000, number)), Won):
            number += 1
        assert isinstance(await one.store.append(grant, number, noise(20_000, number)), Full)
        assert 5 <= number <= 10
        size = sum(len(k) + len(v) for k, v in api.lease()["metadata"]["annotations"].items())
        assert size <= 200 * 1024
        grant = await one.renewed(grant)
        await one.store.put_entry(b"there is room for this")
        assert await one.store.read(1) is not None
        await one.store.trim(grant, 3)
        assert isinstance(await one.store.append(grant, number, noise(20_000, number)), Won)

    story(main)


def test_what_others_keep_in_the_lease_counts_against_the_room(server: Any, node: Any) -> None:
    async def main() -> None:
        api = server()
        one = node(api, "a")
        grant = await one.win()
        api.edit(lambda lease: lease["metadata"]["annotations"].update({"example.com/big": "x" * 204_000}))
        assert isinstance(await one.store.append(grant, 1, noise(2_000)), Full)
        api.edit(lambda lease: lease["metadata"]["annotations"].update({"example.com/big": "x" * 253_950}))
        with pytest.raises(StoreUnavailable, match="no room"):
            await one.store.put_entry(noise(2_000))
        with pytest.raises(StoreUnavailable, match="no room"):
            await one.store.mark_reboot(grant, "set", "job" * 100, nonce="m1")
        await one.renewed(grant)

    story(main)


def test_a_log_that_vanished_under_a_term_ends_the_term(server: Any, node: Any) -> None:
    async def main() -> None:
        api = server()
        one = node(api, "a")
        grant = await one.win()
        for number in (1, 2):
            assert isinstance(await one.store.append(grant, number, b"r"), Won)
        api.edit(lambda lease: lease["metadata"]["annotations"].pop(record.CLAIMS))
        assert await one.store.append(grant, 3, b"r") == Fenced()
        assert (await one.store.span()).last == 0

    story(main)


def test_damage_to_the_log_is_said_once_and_its_numbers_go_on(server: Any, node: Any) -> None:
    async def main() -> None:
        api = server()
        one = node(api, "a")
        grant = await one.win()
        for number in (1, 2):
            await one.store.append(grant, number, b"r")
        api.edit(lambda lease: lease["metadata"]["annotations"].update({record.CLAIMS: "1 1 2 damage"}))
        span = await one.store.span()
        assert (span.first, span.last) == (3, 2)
        assert [await one.store.read(number) for number in (1, 2)] == [None, None]
        assert isinstance(await one.store.append(grant, 3, b"s"), Won)
        assert await one.store.read(3) == b"s"
        assert len(one.host.logged("damaged")) == 1

    story(main)


def test_reading_a_log_costs_one_request(server: Any, node: Any) -> None:
    async def main() -> None:
        api = server()
        one, two = node(api, "a"), node(api, "b")
        grant = await one.win()
        for number in range(1, 41):
            await one.store.append(grant, number, b"record %d" % number)
        span = await two.store.span()
        before = len(two.line.calls)
        found = [await two.store.read(number) for number in range(span.first, span.last + 1)]
        assert found == [b"record %d" % number for number in range(1, 41)]
        assert len(two.line.calls) == before

    story(main)


def test_renewals_claims_and_entries_of_one_process_do_not_lose_each_other(server: Any, node: Any) -> None:
    """Claims 9: whatever lands first, the others are built anew on it."""

    async def main() -> None:
        api = server()
        one = node(api, "a")
        grant = await one.win()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.renewed, grant)
            tasks.start_soon(one.store.append, grant, 1, b"r")
            tasks.start_soon(one.store.put_entry, b"entry")
        assert await one.store.read(1) == b"r"
        assert await one.store.entries() == [b"entry"]
        assert api.lease()["metadata"]["annotations"][record.TERM] != ""

    story(main)


def test_an_entry_whose_process_is_long_gone_is_swept_out_by_the_next_that_writes(server: Any, node: Any) -> None:
    async def main() -> None:
        api = server()
        old, new = node(api, "a"), node(api, "b")
        await old.store.put_entry(b"old")
        api.edit(lambda lease: lease["metadata"]["annotations"].update({f"{record.ENTRY}torn": "{"}))
        await new.host.clock.sleep(80_000)
        await new.store.put_entry(b"new")
        assert sorted(await new.store.entries()) == [b"new", b"old"]
        assert f"{record.ENTRY}torn" not in api.lease()["metadata"]["annotations"]
        await new.host.clock.sleep(10_000)
        await new.store.put_entry(b"newer")
        assert await new.store.entries() == [b"newer"]

    story(main)


# -- @reboot marks


def test_marks_read_as_the_reference_says(server: Any, node: Any) -> None:
    async def main() -> None:
        api = server()
        one = node(api, "a")
        grant = await one.win()
        await one.store.mark_reboot(grant, "id-1", "warm-up", nonce="m1")
        value = json.loads(api.lease()["metadata"]["annotations"]["cronstable.io/reboot-ran"])
        assert (value["jobSetId"], value["jobs"]) == ("id-1", ["warm-up"])

    story(main)


def test_marks_without_our_additions_are_understood() -> None:
    text = json.dumps({"jobSetId": "id", "jobs": ["a", 5, "b"]})
    assert marks.of(text, "id") == {"a", "b"}
    assert marks.of(text, "other") == frozenset()
    assert marks.of(marks.added(text, "id", "c", "m"), "id") == {"a", "b", "c"}


@pytest.mark.parametrize("text", [None, "", "{", "[]", "5", '{"jobSetId": 5}', '{"jobSetId": "id", "jobs": {}}'])
def test_damaged_marks_are_none(text: str | None) -> None:
    assert marks.of(text, "id") == frozenset()
    assert marks.of(marks.added(text, "id", "a", "m"), "id") == {"a"}


def test_the_oldest_marks_of_other_job_sets_go_first_and_those_in_use_never() -> None:
    text: str | None = None
    for number in range(400):
        text = marks.added(text, "old", f"old-{number}", "m")
    for number in range(300):
        text = marks.added(text, "new", f"new-{number}", "m")
    assert len(marks.of(text, "new")) == 300
    assert marks.of(text, "old") == {f"old-{number}" for number in range(188, 400)}
