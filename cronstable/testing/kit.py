"""What keeps a contract honest: a kit test that a subclass overrides, removes or marks away is an error."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ClassVar

import pytest

from cronstable.testing.clock import run_virtual

EXCUSES = frozenset({"skip", "skipif", "xfail"})


class ContractKit:
    """Base of the contract suites. Subclasses of a suite may add tests; they may not touch the kit's own."""

    _kit_tests: ClassVar[dict[str, object]] = {}

    def __init_subclass__(cls, *, suite: bool = False, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if suite:
            own = {name: value for name, value in vars(cls).items() if name.startswith("test_")}
            cls._kit_tests = {**cls._kit_tests, **own}
            return
        touched = tampered(cls)
        if touched:
            raise TypeError(f"{cls.__name__} overrides tests of the contract kit: {', '.join(touched)}")

    @classmethod
    def kit_tests(cls) -> tuple[str, ...]:
        """The names of the tests that come with the suite, the guard of them aside."""
        return tuple(name for name in cls._kit_tests if name != GUARD)

    def test_no_test_of_the_kit_was_overridden_removed_or_excused(self) -> None:
        """The kit as shipped is what runs."""
        problems = tampered(type(self)) + excused(type(self))
        assert not problems, f"the contract is not what was shipped: {', '.join(problems)}"


GUARD = ContractKit.test_no_test_of_the_kit_was_overridden_removed_or_excused.__name__
ContractKit._kit_tests = {GUARD: vars(ContractKit)[GUARD]}


def tampered(suite: type[ContractKit]) -> list[str]:
    """Names of kit tests that ``suite`` does not have as they were shipped."""
    return sorted(name for name, shipped in suite._kit_tests.items() if getattr(suite, name, None) is not shipped)


def excused(suite: type[ContractKit]) -> list[str]:
    """Marks on ``suite`` or its kit tests that would let a test not count."""
    found = []
    for holder in (suite, *(getattr(suite, name, None) for name in suite._kit_tests)):
        marks = getattr(holder, "pytestmark", ())
        for mark in marks if isinstance(marks, list | tuple) else (marks,):
            if isinstance(mark, pytest.Mark | pytest.MarkDecorator) and mark.name in EXCUSES:
                found.append(f"{mark.name} on {getattr(holder, '__name__', holder)}")
    return sorted(found)


def violations(suite: type[ContractKit], fixture: Callable[[], object]) -> dict[str, str]:
    """Run every kit test of ``suite`` on a virtual loop, each with a fresh ``fixture()``; what failed, and how.

    This is how the kit is proven on planted bugs; it needs no pytest session. Works for fixtures without threads.
    """
    failed: dict[str, str] = {}
    for name in suite.kit_tests():
        test = getattr(suite(), name)
        given = fixture()
        try:
            if inspect.iscoroutinefunction(test):
                run_virtual(functools.partial(test, given))
            else:
                test(given)
        except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - a planted bug may raise anything
            failed[name] = f"{type(error).__name__}: {error}"
    return failed
