"""Levels: what a backend was certified for, as far as its own test module has run the kit.

A level is earned by a class of the test module for each suite it takes, with nothing overridden, skipped or left out::

    from cronstable.testing.levels import certify

    def test_what_we_promise():
        certificate = certify(__name__, capabilities=CAPABILITIES)
        assert certificate.level is Level.FAULTS, certificate

``certify`` looks at the classes of a module and does not run them: pytest does. It refuses a module whose suites fall
short of the capabilities that the backend declares, so that a promise without a proof fails a test.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from types import ModuleType
from typing import Final

from cronstable.plugin.descriptors import Capability
from cronstable.testing.claims_contract import ClaimLogContract
from cronstable.testing.election_contract import ElectionContract
from cronstable.testing.fault_contract import ClaimFaultContract, LeaseFaultContract
from cronstable.testing.kit import ContractKit, excused, tampered
from cronstable.testing.lease_contract import LeaseStoreContract
from cronstable.testing.marks_contract import RebootMarksContract


class Level(IntEnum):
    """What was proven; each level holds all below it.

    ``SAFETY``: at most one holder, whatever happens between the calls (``LeaseStoreContract``). ``LIVENESS``: and one
    within the bound, under the host's driver (``ElectionContract``). ``CLAIMS``: and an occurrence is claimed once
    (``ClaimLogContract``). ``FAULTS``: and all of it with lost, late and repeated requests, and a lease that is
    deleted, edited, rolled back, gone early or kept too long (``LeaseFaultContract``, ``ClaimFaultContract``).
    """

    NONE = 0
    SAFETY = 1
    LIVENESS = 2
    CLAIMS = 3
    FAULTS = 4


NEEDED: Final[dict[Level, tuple[type[ContractKit], ...]]] = {
    Level.SAFETY: (LeaseStoreContract,),
    Level.LIVENESS: (ElectionContract,),
    Level.CLAIMS: (ClaimLogContract,),
    Level.FAULTS: (LeaseFaultContract, ClaimFaultContract),
}

OWED: Final[dict[Capability, tuple[type[ContractKit], ...]]] = {
    Capability.LEASE: (LeaseStoreContract, ElectionContract),
    Capability.REBOOT_MARKS: (RebootMarksContract,),
    Capability.OCCURRENCE_CLAIMS: (ClaimLogContract,),
}
"""What a capability has to be proven by."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a test module proves when all of it passes. ``suites``: the contracts in it, by name; ``tests``: of them."""

    level: Level
    suites: tuple[str, ...]
    tests: int

    def __str__(self) -> str:
        return (
            f"level {self.level.name.lower()}: {', '.join(self.suites) or 'no suite'} ({self.tests} tests of the kit)"
        )


class NotCertified(AssertionError):
    """The test module does not prove what the backend declares."""


def certify(module: ModuleType | str, *, capabilities: Iterable[Capability] = ()) -> Certificate:
    """What the suites in ``module`` (or the module of that name) are good for.

    Raises ``NotCertified`` when a suite is not run as it was shipped, or when a capability has no suite.
    """
    if isinstance(module, str):
        module = sys.modules[module]
    suites: list[type[ContractKit]] = [
        one
        for _, one in inspect.getmembers(module, inspect.isclass)
        if issubclass(one, ContractKit) and one.__module__ == module.__name__ and one.__name__.startswith("Test")
    ]
    problems = [f"{suite.__name__}: {what}" for suite in suites for what in (*tampered(suite), *excused(suite))]
    if problems:
        raise NotCertified("the kit is not run as it was shipped: " + "; ".join(problems))
    declared = frozenset(capabilities)
    for capability in sorted(declared):
        missing = ", ".join(kit.__name__ for kit in OWED.get(capability, ()) if not _has(suites, kit))
        if missing:
            raise NotCertified(f"the capability {capability.name} has no proof: there is no test of {missing}")
    expiring = [suite.expires_itself for suite in suites if issubclass(suite, LeaseFaultContract)]
    if expiring and any(expiring) is not (Capability.EXPIRES_ITSELF in declared):
        raise NotCertified("expires_itself of the fault suite and the capability EXPIRES_ITSELF do not say the same")
    level = Level.NONE
    for step in (Level.SAFETY, Level.LIVENESS, Level.CLAIMS, Level.FAULTS):
        if not all(_has(suites, kit) for kit in NEEDED[step]):
            break
        level = step
    known: list[type[ContractKit]] = [kit for kits in NEEDED.values() for kit in kits]
    known.append(RebootMarksContract)
    held = [kit for kit in known if _has(suites, kit)]
    return Certificate(level, tuple(kit.__name__ for kit in held), sum(len(kit.kit_tests()) for kit in held))


def _has(suites: Iterable[type[ContractKit]], kit: type[ContractKit]) -> bool:
    return any(issubclass(suite, kit) for suite in suites)
