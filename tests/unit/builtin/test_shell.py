"""The shell reporter: which variables a command gets, and what counts as told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

import pytest

from cronstable.builtin.shell import environment, make, parse
from cronstable.core.clock import Seconds
from cronstable.core.job import Json
from cronstable.plugin.errors import InvalidSettings, NotDelivered
from cronstable.plugin.protocols import LeaderChange, ProcessEnd, Report
from cronstable.plugin.variables import OUTPUT_TAIL, template_variables
from cronstable.testing.clock import VirtualClock, run_virtual
from cronstable.testing.host import FakeHost

MakeReport = Callable[..., Report]

REFERENCE = frozenset(
    {
        *(
            "FAIL_REASON",
            "FAILED",
            "JOB_NAME",
            "JOB_COMMAND",
            "JOB_SCHEDULE",
            "RETCODE",
            "HOST",
            "RUN_ID",
            "STARTED_AT",
        ),
        *("STDERR", "STDOUT", "STDERR_TRUNCATED", "STDOUT_TRUNCATED", "CPU_SECONDS", "MAX_RSS_BYTES"),
        *("SLA_CHECK", "SLA_THRESHOLD_SECONDS", "SLA_OBSERVED_SECONDS", "LAST_SUCCESS_AT"),
    }
)


class OneProgram:
    """A machine on which every program ends like this."""

    def __init__(self, end: ProcessEnd) -> None:
        self.end = end
        self.calls: list[tuple[tuple[str, ...], dict[str, str], float]] = []

    async def run(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, timeout: Seconds) -> ProcessEnd:
        self.calls.append((tuple(argv), dict(env or {}), timeout))
        return self.end


def send(report: Report, end: ProcessEnd, **section: Json) -> OneProgram:
    programs = OneProgram(end)

    async def run() -> None:
        host = FakeHost(VirtualClock.of_loop(), processes=programs)
        await make(parse({"command": "tell", **section}), host).send(report)

    run_virtual(run)
    return programs


def test_a_command_gets_every_variable_of_the_reference(make_report: MakeReport) -> None:
    ((argv, env, timeout),) = send(make_report(stdout="out", stderr="a\0b"), ProcessEnd(0)).calls
    assert argv == ("/bin/sh", "-c", "tell")
    assert timeout == 60
    assert {f"CRONSTABLE_{name}" for name in REFERENCE} <= set(env)
    assert env["CRONSTABLE_FAILED"] == "1"
    assert env["CRONSTABLE_FAIL_REASON"] == "failsWhen=nonzeroReturn and retcode=3"
    assert env["CRONSTABLE_RETCODE"] == "3"
    assert env["CRONSTABLE_STDOUT"] == "out"
    assert env["CRONSTABLE_STDERR"] == "a\ufffdb"
    assert env["CRONSTABLE_STARTED_AT"] == "2026-01-01T00:00:00+00:00"
    assert env["CRONSTABLE_CPU_SECONDS"] == ""


def test_a_success_has_not_failed_and_a_long_output_is_cut(make_report: MakeReport) -> None:
    ((_, env, _),) = send(make_report("onSuccess", stdout="x" * (OUTPUT_TAIL + 1)), ProcessEnd(0)).calls
    assert (env["CRONSTABLE_FAILED"], env["CRONSTABLE_RETCODE"], env["CRONSTABLE_FAIL_REASON"]) == ("0", "0", "")
    assert (env["CRONSTABLE_STDOUT_TRUNCATED"], env["CRONSTABLE_STDERR_TRUNCATED"]) == ("1", "0")
    assert len(env["CRONSTABLE_STDOUT"]) < OUTPUT_TAIL + 100


def test_an_event_of_the_cluster_reads_like_a_failure_of_the_node() -> None:
    env = environment(template_variables(LeaderChange("node-a", False, "node-b", 0.0, "", "host-1")))
    assert env["CRONSTABLE_EVENT"] == "leader_change"
    assert (env["CRONSTABLE_JOB_NAME"], env["CRONSTABLE_HOST"]) == ("node-a", "host-1")
    assert env["CRONSTABLE_FAIL_REASON"] == "Node node-a is no longer the leader; the leader is node-b."
    assert env["CRONSTABLE_RETCODE"] == ""


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (ProcessEnd(1, output=b"no\n route"), "the command ended with 1: no route"),
        (ProcessEnd(-15, timed_out=True), "the command was ended after 2 s"),
        (ProcessEnd(None), "the command ended with None"),
    ],
)
def test_anything_but_exit_0_in_time_is_a_failure_that_is_not_tried_again(
    end: ProcessEnd, why: str, make_report: MakeReport
) -> None:
    with pytest.raises(NotDelivered) as raised:
        send(make_report(), end, timeout=2)
    assert str(raised.value) == why
    assert not raised.value.retry


def test_a_command_that_cannot_be_started_is_a_failure(make_report: MakeReport, fake_host: FakeHost) -> None:
    notifier = make(parse({"command": ["/no/such/program"]}), fake_host)
    send_it: Callable[[], Awaitable[None]] = lambda: notifier.send(make_report())  # noqa: E731
    with pytest.raises(NotDelivered, match="/no/such/program"):
        run_virtual(send_it)


def test_a_list_is_executed_as_it_stands_and_a_shell_can_be_chosen() -> None:
    listed, shelled = parse({"command": ["logger", "a b"]}), parse({"command": "x", "shell": "/bin/bash"})
    assert listed is not None
    assert shelled is not None
    assert listed.argv == ("logger", "a b")
    assert shelled.argv == ("/bin/bash", "-c", "x")
    assert make(replace(listed, timeout=90.0), FakeHost(VirtualClock())).longest_send > 90  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", [None, "", "  ", []])
def test_without_a_command_nobody_is_told(command: Json) -> None:
    assert parse({"command": command}) is None


def test_a_command_with_a_nul_is_refused() -> None:
    with pytest.raises(InvalidSettings, match="NUL"):
        parse({"command": "a\0b"})
