"""Cron rules: placeholder until the search lands; the public surface is final."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import tzinfo


class ScheduleError(ValueError):
    """An expression that is not of the dialect. ``field``: which column; ``hint``: what to write instead."""

    def __init__(self, message: str, *, expression: str, field: str = "", hint: str | None = None) -> None:
        super().__init__(message)
        self.expression = expression
        self.field = field
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a job is due."""

    text: str
    zone: tzinfo
    reboot: bool = False
