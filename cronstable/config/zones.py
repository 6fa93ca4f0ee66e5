"""Time zones by name, and the zone of this host."""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from datetime import UTC, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

_LOCALTIME: Final = "/etc/localtime"


def named_zone(name: str) -> tzinfo | None:
    """The IANA zone ``name``, None when there is none."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        # Depending on the name, zoneinfo says that it is not found, malformed, a directory or not readable.
        return None


def local_zone(environ: Mapping[str, str], localtime: str = _LOCALTIME) -> tzinfo:
    """The zone for ``utc: false``: ``TZ`` if it names one, else what /etc/localtime is, else UTC."""
    name = environ.get("TZ", "").removeprefix(":")
    zone = named_zone(name) if name else None
    if zone is not None:
        return zone
    target = os.path.realpath(localtime)
    _, marker, name = target.rpartition("/zoneinfo/")
    zone = named_zone(name) if marker else None
    if zone is not None:
        return zone
    try:
        with open(localtime, "rb") as file:
            return ZoneInfo.from_file(file, key="localtime")
    except (OSError, ValueError):
        return UTC
