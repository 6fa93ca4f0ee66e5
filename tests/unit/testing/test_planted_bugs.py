"""The kit is worth something: it catches every planted bug, and nothing in the reference."""

from __future__ import annotations

import pytest

from cronstable.testing.claims_contract import ClaimLogContract
from cronstable.testing.kit import violations
from cronstable.testing.lease_contract import LeaseStoreContract
from cronstable.testing.marks_contract import RebootMarksContract
from cronstable.testing.memory import MemoryDoor
from cronstable.testing.planted import PLANTED_BUGS, PLANTED_CLAIM_BUGS, PLANTED_MARK_BUGS


def test_the_reference_store_violates_nothing() -> None:
    assert violations(LeaseStoreContract, MemoryDoor) == {}
    assert violations(RebootMarksContract, MemoryDoor) == {}
    assert violations(ClaimLogContract, MemoryDoor) == {}


@pytest.mark.parametrize("bug", sorted(PLANTED_BUGS))
def test_the_contract_catches(bug: str) -> None:
    assert violations(LeaseStoreContract, lambda: MemoryDoor(PLANTED_BUGS[bug]))


@pytest.mark.parametrize("bug", sorted(PLANTED_MARK_BUGS))
def test_the_marks_contract_catches(bug: str) -> None:
    assert violations(RebootMarksContract, lambda: MemoryDoor(PLANTED_MARK_BUGS[bug]))


@pytest.mark.parametrize("bug", sorted(PLANTED_CLAIM_BUGS))
def test_the_claims_contract_catches(bug: str) -> None:
    assert violations(ClaimLogContract, lambda: MemoryDoor(PLANTED_CLAIM_BUGS[bug]))


def test_there_are_enough_planted_bugs_and_each_says_what_it_is() -> None:
    assert len(PLANTED_BUGS) >= 25
    assert all(kind.__doc__ for kind in PLANTED_BUGS.values())
