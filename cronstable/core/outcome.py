"""What an ended process means: success or failure, and the words for it (reference 2.3)."""

from __future__ import annotations

from signal import Signals

from cronstable.core.clock import Seconds
from cronstable.core.job import FailsWhen
from cronstable.core.runs import EXECUTION_TIMEOUT, LAUNCH_FAILED
from cronstable.core.values import dataclass


@dataclass(frozen=True, slots=True)
class Produced:
    """How many lines a run wrote to each captured stream, kept or discarded; 0 for a stream that is not captured."""

    stdout: int = 0
    stderr: int = 0


def fail_reason(rule: FailsWhen, exit_code: int, produced: Produced, detail: str | None = None) -> str | None:
    """Why the run failed, None when it did not. The first rule that matches names the reason.

    ``detail`` says what the exit code alone cannot (why the launch failed, which timeout ended the run) and follows
    in parentheses. With a ``detail`` the run is a failure under every ``failsWhen``: the rules judge commands
    that came to their own end.
    """
    reason = _first_match(rule, exit_code, produced)
    if detail is None:
        return reason
    return detail if reason is None else f"{reason} ({detail})"


def _first_match(rule: FailsWhen, exit_code: int, produced: Produced) -> str | None:
    if rule.always:
        return "failsWhen=always"
    if rule.nonzero_return and exit_code != 0:
        return f"failsWhen=nonzeroReturn and retcode={exit_code}"
    if rule.produces_stdout and produced.stdout:
        return "failsWhen=producesStdout and stdout is not empty"
    if rule.produces_stderr and produced.stderr:
        return "failsWhen=producesStderr and stderr is not empty"
    return None


def exit_code_name(exit_code: int) -> str:
    """An exit code in words, for logs and pages: ``exit 3``, ``killed by SIGTERM``, ``launch failed``."""
    if exit_code == EXECUTION_TIMEOUT:
        return "execution timeout"
    if exit_code == LAUNCH_FAILED:
        # A shell answers 127 as well when it does not find a command, so the code alone proves no failed launch.
        return "exit 127 (launch failed or command not found)"
    if exit_code >= 0:
        return f"exit {exit_code}"
    try:
        return f"killed by {Signals(-exit_code).name}"
    except ValueError:
        return f"killed by signal {-exit_code}"


def timeout_detail(limit: Seconds) -> str:
    """The words for a run that ``executionTimeout`` ended; ``limit`` in seconds as configured."""
    return f"executionTimeout of {limit:g} s expired"
