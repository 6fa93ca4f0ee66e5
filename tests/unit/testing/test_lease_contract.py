"""The reference store passes its own contract, and the contract cannot be weakened by a subclass."""

from __future__ import annotations

import pytest

from cronstable.testing.claims_contract import ClaimLogContract
from cronstable.testing.kit import excused, tampered
from cronstable.testing.lease_contract import LeaseStoreContract
from cronstable.testing.marks_contract import RebootMarksContract
from cronstable.testing.memory import MemoryDoor


class TestMemoryLease(LeaseStoreContract):
    @pytest.fixture
    def door(self) -> MemoryDoor:
        return MemoryDoor()


class TestMemoryMarks(RebootMarksContract):
    @pytest.fixture
    def door(self) -> MemoryDoor:
        return MemoryDoor()


class TestMemoryClaims(ClaimLogContract):
    @pytest.fixture
    def door(self) -> MemoryDoor:
        return MemoryDoor()


def test_overriding_a_test_of_the_kit_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="test_garbage_is_neither_free_nor_ours"):
        type("Cheat", (LeaseStoreContract,), {"test_garbage_is_neither_free_nor_ours": lambda self: None})


def test_hiding_a_test_of_the_kit_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="test_an_empty_store_is_vacant"):
        type("Cheat", (LeaseStoreContract,), {"test_an_empty_store_is_vacant": None})


def test_removing_a_test_after_the_class_was_made_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    suite = type("Late", (LeaseStoreContract,), {})
    monkeypatch.delattr(LeaseStoreContract, "test_an_empty_store_is_vacant")
    assert tampered(suite) == ["test_an_empty_store_is_vacant"]
    with pytest.raises(AssertionError, match="test_an_empty_store_is_vacant"):
        suite().test_no_test_of_the_kit_was_overridden_removed_or_excused()


def test_a_skip_mark_on_the_suite_is_found() -> None:
    suite = type("Lazy", (LeaseStoreContract,), {"pytestmark": [pytest.mark.skip(reason="too hard")]})
    assert excused(suite) == ["skip on Lazy"]


def test_a_subclass_may_add_tests_of_its_own() -> None:
    suite = type("More", (LeaseStoreContract,), {"test_mine": lambda self: None})
    assert tampered(suite) == []
    assert excused(suite) == []
