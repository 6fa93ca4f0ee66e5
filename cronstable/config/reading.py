"""Reading what a user named: never more than such a file may hold, so that a device that never ends is an error."""

from __future__ import annotations

import errno
from typing import Final

LONGEST_CONFIG: Final = 64 << 20
"""Bytes of one configuration file. Ten thousand realistic jobs take a few MiB."""

LONGEST_ENV_FILE: Final = 1 << 20
"""Bytes of one ``env_file``: more than a process can be given anyway."""


def read_up_to(path: str, longest: int) -> bytes:
    """All of ``path``. Raises ``OSError`` (EFBIG) when that is more than ``longest`` bytes; pipes are fine."""
    with open(path, "rb") as file:
        data = file.read(longest + 1)
    if len(data) > longest:
        raise OSError(errno.EFBIG, f"it has more than {longest} bytes", path)
    return data
