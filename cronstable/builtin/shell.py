"""The reporter ``shell``: a command with the facts in its environment (reference 2.4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from cronstable.api import (
    Host,
    InvalidSettings,
    Json,
    Message,
    NotDelivered,
    Notifier,
    NotifierBackend,
    Problem,
    Seconds,
    Section,
    hookimpl,
    template_variables,
)
from cronstable.builtin.sections import reporter

_TO_END: Final[Seconds] = 10.0
"""How long ending a command that had its time can take."""
_SHOWN: Final = 300
"""Characters of a failed command's output in the log."""

SCHEMA = reporter(
    "shell",
    "By a command, with the facts in CRONSTABLE_ variables.",
    [{"command": "logger failed"}],
    command={
        "type": ["string", "array", "null"],
        "items": {"type": "string"},
        "description": "Text is given to the shell, a list is executed as it stands.",
    },
    shell={"type": "string", "description": "Runs a command given as text; /bin/sh when it is not set."},
    timeout={
        "type": "number",
        "exclusiveMinimum": 0,
        "default": 60,
        "description": "Seconds; then its group is ended.",
    },
)


@dataclass(frozen=True, slots=True)
class ShellSettings:
    """A command. ``timeout`` in seconds."""

    argv: tuple[str, ...]
    timeout: Seconds


@hookimpl
def cronstable_notifiers() -> Iterable[NotifierBackend]:
    """The key ``shell`` of a ``report`` block."""
    yield NotifierBackend(name="shell", factory="cronstable.builtin.shell:make", schema=SCHEMA, parse=parse)


def parse(section: Section) -> ShellSettings | None:
    """Settings; None without a command. Raises ``InvalidSettings``."""
    command, timeout = section.get("command"), section.get("timeout")
    argv: tuple[str, ...] = ()
    if isinstance(command, str):
        argv = (str(section.get("shell") or "/bin/sh"), "-c", command)
    elif isinstance(command, list):
        argv = tuple(str(word) for word in command)
    if any("\0" in word for word in argv):
        raise InvalidSettings([Problem(("command",), "has a NUL character in it")])
    if not argv or not argv[-1].strip():
        return None
    return ShellSettings(argv, float(timeout) if isinstance(timeout, int | float) else 60.0)


def make(settings: object, host: Host) -> Notifier:
    """The factory."""
    assert isinstance(settings, ShellSettings)
    return Shell(settings, host)


class Shell:
    """A ``Notifier``, and ``Bounded``."""

    def __init__(self, settings: ShellSettings, host: Host) -> None:
        self._settings = settings
        self._host = host

    @property
    def longest_send(self) -> Seconds:
        """The command's time, and what it takes to end it."""
        return self._settings.timeout + _TO_END

    async def send(self, message: Message) -> None:
        """Run the command; anything but exit 0 within its time is a failure."""
        env = environment(template_variables(message))
        try:
            end = await self._host.processes.run(self._settings.argv, env=env, timeout=self._settings.timeout)
        except OSError as error:
            raise NotDelivered(str(error)) from None
        said = " ".join(end.output.decode("utf-8", "replace").split())[-_SHOWN:]
        more = f": {said}" if said else ""
        if end.timed_out:
            raise NotDelivered(f"the command was ended after {self._settings.timeout:g} s{more}")
        if end.exit_code != 0:
            raise NotDelivered(f"the command ended with {end.exit_code}{more}")


def environment(variables: Mapping[str, Json]) -> dict[str, str]:
    """The ``CRONSTABLE_*`` variables of the command; what there is not is empty."""
    plain = {
        "EVENT": variables["event"],
        "SUBJECT": variables["subject"],
        "FAILED": "0" if variables["success"] else "1",
        "FAIL_REASON": variables["fail_reason"],
        "JOB_NAME": variables["name"],
        "JOB_COMMAND": variables["command"],
        "JOB_SCHEDULE": variables["schedule"],
        "RETCODE": variables["exit_code"],
        "HOST": variables["host"],
        "RUN_ID": variables["run_id"],
        "ATTEMPT": variables["attempt"],
        "STARTED_AT": variables["started_at"],
        "CPU_SECONDS": variables["cpu_seconds"],
        "MAX_RSS_BYTES": variables["max_rss_bytes"],
        "SLA_CHECK": variables["sla_check"],
        "SLA_THRESHOLD_SECONDS": variables["threshold_seconds"],
        "SLA_OBSERVED_SECONDS": variables["observed_seconds"],
        "LAST_SUCCESS_AT": variables["last_success_at"],
    }
    for stream in ("stdout", "stderr"):
        kept = str(variables[stream] or "")
        plain[stream.upper()] = kept
        plain[f"{stream.upper()}_TRUNCATED"] = "1" if variables[f"{stream}_truncated"] else "0"
    # No environment can hold a NUL.
    return {f"CRONSTABLE_{key}": _text(value).replace("\0", "\ufffd") for key, value in plain.items()}


def _text(value: Json) -> str:
    return "" if value is None else str(value)
