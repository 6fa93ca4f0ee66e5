"""One ``@reboot`` run per boot of the operating system and host, where there is a state store (reference 11).

A daemon that is started again is no reboot. What tells is the identity that the kernel gives each boot, in a marker
that is written before the run starts: a run may be lost by that, but never doubled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Final

from cronstable.core.job import Json
from cronstable.core.values import dataclass

BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
"""Where Linux says which boot this is: a UUID, new each time, the same for all containers of a machine."""
LONGEST: Final = 64


def boot_id(text: str | None) -> str | None:
    """The identity in what the kernel said, None when it said nothing that can be one."""
    found = (text or "").strip().lower()
    plausible = 8 <= len(found) <= LONGEST and all(c in "0123456789abcdef-" for c in found)
    return found if plausible else None


@dataclass(frozen=True, slots=True)
class Marker:
    """The @reboot run of a job on ``host`` in the boot ``boot``, under the definition ``digest``. ``at``: wall seconds.

    ``survived``: it was started by the daemon before this one and lived on.
    """

    host: str
    boot: str
    digest: str
    at: float
    survived: bool = False

    def encode(self) -> dict[str, Json]:
        """As it stands in the stream ``reboot/<job>``."""
        found: dict[str, Json] = {"host": self.host, "bootId": self.boot, "jobDigest": self.digest, "at": self.at}
        return found | {"survived": True} if self.survived else found


class Start(Enum):
    """What a daemon that just started does about an @reboot job."""

    RUN = "run"
    """Write the marker, then run."""
    RUN_UNMARKED = "run unmarked"
    """Nobody can tell whether it ran in this boot, and it shall rather run twice than not at all."""
    RAN = "ran"
    """It ran in this boot."""
    SURVIVES = "survives"
    """Its process, of the daemon before, still lives: write the marker, and do not run."""
    UNKNOWN = "unknown"
    """Nobody can tell whether it ran in this boot, and it shall not run on a guess."""


def decide_start(
    records: Iterable[Mapping[str, Json]] | None,
    *,
    host: str,
    boot: str | None,
    digest: str,
    survives: bool,
    fail_closed: bool,
) -> Start:
    """``records``: of the stream ``reboot/<job>``, None when they could not be read. ``boot``: of this boot, if known.

    A marker counts for its host, its boot and its definition alone.
    """
    if survives:
        return Start.SURVIVES
    if records is None or boot is None:
        return Start.UNKNOWN if fail_closed else Start.RUN_UNMARKED
    mark = (host, boot, digest)
    ran = any((r.get("host"), r.get("bootId"), r.get("jobDigest")) == mark for r in records)
    return Start.RAN if ran else Start.RUN


def after_marking(written: bool, *, fail_closed: bool) -> Start:
    """What becomes of ``RUN`` once the marker was tried to be written."""
    if written:
        return Start.RUN
    return Start.UNKNOWN if fail_closed else Start.RUN_UNMARKED
