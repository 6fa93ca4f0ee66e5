"""What a test module proves is said by its suites, and a promise without a proof is refused."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from cronstable.plugin.descriptors import Capability
from cronstable.testing.claims_contract import ClaimLogContract
from cronstable.testing.election_contract import ElectionContract, ElectionWorld, LeaseWorld, MakeWorld
from cronstable.testing.fault_contract import ClaimFaultContract, LeaseFaultContract
from cronstable.testing.kit import ContractKit, violations
from cronstable.testing.lease_contract import LeaseStoreContract
from cronstable.testing.levels import Level, NotCertified, certify
from cronstable.testing.marks_contract import RebootMarksContract
from cronstable.testing.memory import MemoryDoor, MemoryLease, MemoryLeaseStore
from cronstable.testing.planted import PLANTED_BUGS, PLANTED_CLAIM_BUGS

ALL = frozenset({Capability.LEASE, Capability.FENCED, Capability.REBOOT_MARKS, Capability.OCCURRENCE_CLAIMS})


class TestMemoryLease(LeaseStoreContract):
    @pytest.fixture
    def door(self) -> MemoryDoor:
        return MemoryDoor()


class TestMemoryLeaseFaults(LeaseFaultContract):
    expires_itself = True

    @pytest.fixture
    def door(self) -> MemoryDoor:
        return MemoryDoor()


class TestMemoryClaims(ClaimLogContract):
    @pytest.fixture
    def door(self) -> MemoryDoor:
        return MemoryDoor()


class TestMemoryClaimFaults(ClaimFaultContract):
    @pytest.fixture
    def door(self) -> MemoryDoor:
        return MemoryDoor()


class TestMemoryMarks(RebootMarksContract):
    @pytest.fixture
    def door(self) -> MemoryDoor:
        return MemoryDoor()


class TestMemoryElection(ElectionContract):
    @pytest.fixture
    def make_world(self) -> MakeWorld:
        def make() -> ElectionWorld:
            lease = MemoryLease()
            return LeaseWorld(lambda host: MemoryLeaseStore(lease, clock=host.clock))

        return make


def module_of(*suites: type[ContractKit]) -> ModuleType:
    module = ModuleType("somebody_elses_tests")
    for number, suite in enumerate(suites):
        name = f"Test{number}"
        setattr(module, name, type(name, (suite,), {"__module__": module.__name__}))
    return module


def test_this_module_proves_the_memory_store_up_to_its_faults() -> None:
    certificate = certify(sys.modules[__name__], capabilities=ALL | {Capability.EXPIRES_ITSELF})
    assert certificate.level is Level.FAULTS
    assert "RebootMarksContract" in certificate.suites
    assert certificate.tests > 80
    assert str(certificate).startswith("level faults: LeaseStoreContract, ElectionContract")


@pytest.mark.parametrize(
    ("suites", "level"),
    [
        ((), Level.NONE),
        ((ElectionContract,), Level.NONE),
        ((LeaseStoreContract,), Level.SAFETY),
        ((LeaseStoreContract, ElectionContract), Level.LIVENESS),
        ((LeaseStoreContract, ElectionContract, LeaseFaultContract, ClaimFaultContract), Level.LIVENESS),
        ((LeaseStoreContract, ElectionContract, ClaimLogContract), Level.CLAIMS),
    ],
)
def test_a_level_holds_all_below_it(suites: tuple[type[ContractKit], ...], level: Level) -> None:
    assert certify(module_of(*suites)).level is level


def test_a_capability_without_a_suite_is_refused_by_name() -> None:
    with pytest.raises(NotCertified, match=r"OCCURRENCE_CLAIMS has no proof: there is no test of ClaimLogContract"):
        certify(module_of(LeaseStoreContract, ElectionContract), capabilities={Capability.OCCURRENCE_CLAIMS})


def test_expiry_is_declared_in_both_places_or_in_none() -> None:
    module = module_of(LeaseStoreContract, ElectionContract, LeaseFaultContract)
    with pytest.raises(NotCertified, match="EXPIRES_ITSELF"):
        certify(module, capabilities={Capability.LEASE, Capability.EXPIRES_ITSELF})


def test_a_suite_with_a_test_marked_away_certifies_nothing() -> None:
    module = module_of(LeaseStoreContract)
    module.Test0.pytestmark = [pytest.mark.skip(reason="later")]
    with pytest.raises(NotCertified, match="skip on Test0"):
        certify(module)


def test_the_fault_suites_find_nothing_wrong_with_the_reference() -> None:
    assert violations(TestMemoryLeaseFaults, MemoryDoor) == {}
    assert violations(TestMemoryClaimFaults, MemoryDoor) == {}


@pytest.mark.parametrize(
    "bug",
    [
        "RenewsAnything",
        "RenewsAfterRelease",
        "RecreatesADeletedLease",
        "ReleasesAnybodysLease",
        "ForgetsTriedNonces",
        "GrantsTheHolderAgain",
        "TreatsGarbageAsFree",
        "TakesOverBlindly",
    ],
)
def test_the_lease_faults_catch(bug: str) -> None:
    assert violations(TestMemoryLeaseFaults, lambda: MemoryDoor(PLANTED_BUGS[bug]))


@pytest.mark.parametrize("bug", ["AppendsWithoutTheTerm", "AppendsAtTheEnd", "AnswersWithItsOwnRecord"])
def test_the_claim_faults_catch(bug: str) -> None:
    assert violations(TestMemoryClaimFaults, lambda: MemoryDoor(PLANTED_CLAIM_BUGS[bug]))
