"""What a message says, as plain values: for templates, for environments, for whoever writes JSON (reference 2.4, 9)."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final

from cronstable.core.job import Job, Json
from cronstable.core.runs import Outcome, RunRecord
from cronstable.plugin.protocols import LeaderChange, Message, QuorumLoss, Report

OUTPUT_TAIL: Final = 16 * 1024
"""Bytes of each output stream that a message carries: its end, where the reason stands most often."""

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


def template_variables(message: Message, environ: Mapping[str, str] = _NOTHING) -> dict[str, Json]:
    """The variables of a template, for job reports and cluster events alike; what there is not is None.

    ``environ``: the daemon's environment, below the job's own in the variable ``environment``. ``stdout`` and
    ``stderr`` are cut to their last 16 KiB, with a mark. Times are RFC 3339 in UTC. ``subject`` and ``message`` say it
    all in words: what happened and why, with the tail of the output.
    """
    match message:
        case Report():
            return _of_report(message, environ)
        case LeaderChange(node, is_leader, leader, at, reason, host):
            gained = "became the leader" if is_leader else "is no longer the leader"
            known = f"; the leader is {leader}" if leader and not is_leader else ""
            facts: dict[str, Json] = {
                "event": "leader_change",
                "subject": f"node {node} {gained}",
                "message": f"Node {node} {gained}{f' ({reason})' if reason else ''}{known}.",
                "role": "leader" if is_leader else "follower",
                "is_leader": is_leader,
                "leader": leader,
            }
            return _of_event(facts, node, host, at, environ)
        case QuorumLoss(node, at, detail, host):
            why = f" ({detail})" if detail else ""
            facts = {
                "event": "quorum_loss",
                "subject": f"node {node} is not quorate",
                "message": f"Node {node} is not quorate any more{why}. Its Leader jobs do not run until it is.",
                "quorate": False,
            }
            return _of_event(facts, node, host, at, environ)


def _of_event(facts: dict[str, Json], node: str, host: str, at: float, environ: Mapping[str, str]) -> dict[str, Json]:
    return {
        **dict.fromkeys(_RUN_VARIABLES),
        **facts,
        "fail_reason": facts["message"],
        "name": node,
        "host": host,
        "success": False,
        "at": _time(at),
        "environment": dict(environ),
    }


_RUN_VARIABLES: Final = (
    "fail_reason",
    "stdout",
    "stderr",
    "stdout_truncated",
    "stderr_truncated",
    "exit_code",
    "command",
    "shell",
    "schedule",
    "scheduled_at",
    "started_at",
    "finished_at",
    "duration",
    "attempt",
    "run_id",
    "cpu_seconds",
    "cpu_user_seconds",
    "cpu_system_seconds",
    "max_rss_bytes",
    "sla_check",
    "threshold_seconds",
    "observed_seconds",
    "last_success_at",
)


def _of_report(report: Report, environ: Mapping[str, str]) -> dict[str, Json]:
    job, record, facts = report.job, report.record, report.facts
    stdout, stdout_cut = tail(record.stdout)
    stderr, stderr_cut = tail(record.stderr)
    variables: dict[str, Json] = {
        **dict.fromkeys(_RUN_VARIABLES),
        "event": report.event,
        "name": job.name,
        "host": report.host,
        "success": report.event == "onSuccess",
        "outcome": record.outcome.value,
        "fail_reason": record.fail_reason or record.skip_reason,
        "stdout": stdout,
        "stderr": stderr,
        "stdout_truncated": stdout_cut,
        "stderr_truncated": stderr_cut,
        "exit_code": record.exit_code,
        "command": job.command if isinstance(job.command, str) else shlex.join(job.command),
        "shell": job.options.shell,
        "schedule": job.schedule.text,
        "scheduled_at": _time(record.key.scheduled_at),
        "started_at": _time(record.started_at),
        "finished_at": _time(record.finished_at),
        "at": _time(record.finished_at),
        "duration": record.duration,
        "attempt": record.key.attempt,
        "run_id": record.key.run_id or None,
        "environment": {**environ, **dict(job.options.environment)},
    }
    if record.resources is not None:
        variables |= {
            "cpu_seconds": record.resources.cpu,
            "cpu_user_seconds": record.resources.cpu_user,
            "cpu_system_seconds": record.resources.cpu_system,
            "max_rss_bytes": record.resources.max_rss,
        }
    if facts is not None:
        variables |= {
            "fail_reason": f"{facts.check}: {facts.observed:g} s, the limit is {facts.threshold:g} s",
            "sla_check": facts.check,
            "threshold_seconds": facts.threshold,
            "observed_seconds": facts.observed,
            "last_success_at": _time(facts.last_success_at),
        }
    variables["subject"] = _subject(report)
    variables["message"] = _words(report, str(variables["fail_reason"] or ""), stdout, stderr)
    return variables


def _subject(report: Report) -> str:
    name = report.job.name
    match report.event:
        case "onSuccess":
            return f"Cron job '{name}' succeeded"
        case "onFailure":
            return f"Cron job '{name}' failed"
        case "onPermanentFailure":
            return f"Cron job '{name}' failed for good"
        case "onLate":
            return f"Cron job '{name}' is late"


def _words(report: Report, reason: str, stdout: str | None, stderr: str | None) -> str:
    """The whole report as text. Empty for a success that had nothing to say: such a mail is not sent."""
    streams = [f"{name}:\n{text.rstrip()}" for name, text in (("stdout", stdout), ("stderr", stderr)) if text]
    if report.event == "onSuccess" and not streams:
        return ""
    return "\n\n".join([_facts(report.job, report.record, reason, report.host), *streams]) + "\n"


def _facts(job: Job, record: RunRecord, reason: str, host: str) -> str:
    lines = [("job", job.name), ("reason", reason), ("host", host)]
    if record.outcome is not Outcome.SKIPPED:
        code = "" if record.exit_code is None else str(record.exit_code)
        took = "" if record.duration is None else f"{record.duration:.1f} s"
        attempt = str(record.key.attempt + 1) if record.key.attempt else ""
        lines += [("exit code", code), ("started", _time(record.started_at) or ""), ("took", took)]
        lines += [("attempt", attempt), ("run", record.key.run_id)]
    return "\n".join(f"{name}: {text}" for name, text in lines if text)


def tail(text: str | None, limit: int = OUTPUT_TAIL) -> tuple[str | None, bool]:
    """The last ``limit`` bytes of ``text`` in UTF-8, after a line that says how many are missing; whether any are."""
    data = (text or "").encode("utf-8", "replace")
    if len(data) <= limit:
        return text, False
    kept = data[-limit:].decode("utf-8", "ignore")
    return f"[... {len(data) - limit} bytes cut ...]\n{kept}", True


def _time(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat()
