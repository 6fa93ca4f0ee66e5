"""The verdict on an ended process, by table (reference 2.3)."""

from __future__ import annotations

import pytest

from cronstable.core.job import FailsWhen
from cronstable.core.outcome import Produced, exit_code_name, fail_reason, timeout_detail

DEFAULT = FailsWhen()
NOTHING = FailsWhen(produces_stdout=False, produces_stderr=False, nonzero_return=False)


@pytest.mark.parametrize(
    ("rule", "code", "produced", "expected"),
    [
        (DEFAULT, 0, Produced(), None),
        (DEFAULT, 0, Produced(stdout=3), None),
        (DEFAULT, 0, Produced(stderr=1), "failsWhen=producesStderr and stderr is not empty"),
        (DEFAULT, 3, Produced(stderr=1), "failsWhen=nonzeroReturn and retcode=3"),
        (DEFAULT, -9, Produced(), "failsWhen=nonzeroReturn and retcode=-9"),
        (FailsWhen(produces_stdout=True), 0, Produced(1, 1), "failsWhen=producesStdout and stdout is not empty"),
        (FailsWhen(always=True), 0, Produced(), "failsWhen=always"),
        (FailsWhen(always=True), 5, Produced(1, 1), "failsWhen=always"),
        (NOTHING, 5, Produced(1, 1), None),
        (NOTHING, -15, Produced(), None),
    ],
)
def test_the_first_rule_that_matches_names_the_reason(
    rule: FailsWhen, code: int, produced: Produced, expected: str | None
) -> None:
    assert fail_reason(rule, code, produced) == expected


def test_a_detail_follows_the_rule_in_parentheses() -> None:
    assert fail_reason(DEFAULT, -100, Produced(), timeout_detail(2.0)) == (
        "failsWhen=nonzeroReturn and retcode=-100 (executionTimeout of 2 s expired)"
    )


def test_a_run_that_was_not_its_own_end_fails_under_every_rule() -> None:
    assert fail_reason(NOTHING, 127, Produced(), "launch failed: no such user") == "launch failed: no such user"


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (0, "exit 0"),
        (3, "exit 3"),
        (-15, "killed by SIGTERM"),
        (-9, "killed by SIGKILL"),
        (-100, "execution timeout"),
        (-99, "killed by signal 99"),
        (127, "exit 127 (launch failed or command not found)"),
    ],
)
def test_exit_codes_have_words(code: int, name: str) -> None:
    assert exit_code_name(code) == name
