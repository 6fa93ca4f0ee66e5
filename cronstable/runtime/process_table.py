"""Processes that are not our children: which one a process id means, whether it still lives, and signals to it."""

from __future__ import annotations

import os
from typing import Protocol


class ProcessTable(Protocol):
    """The machine's processes, as a daemon sees them that started none of them."""

    def mark(self, pid: int) -> str | None:
        """What tells this process from a later one of the same id: its start; None when it is gone."""
        ...

    def signal_group(self, pid: int, number: int) -> None:
        """A signal to the process group that this process leads; nothing when there is none."""
        ...

    def group_lives(self, pid: int) -> bool:
        """Whether anything of the process group is there that this process leads, or led."""
        ...


class ProcTable:
    """Linux, by /proc: the boot id of the machine and the tick at which the process started."""

    def __init__(self, root: str = "/proc") -> None:
        self._root = root
        self._boot_id: str | None = None

    def mark(self, pid: int) -> str | None:
        """See ``ProcessTable.mark``. A zombie is gone: it runs nothing any more."""
        try:
            with open(f"{self._root}/{pid}/stat", "rb") as file:
                # The name of the program, in parentheses, may have anything in it, parentheses too.
                fields = file.read().rpartition(b")")[2].split()
            if self._boot_id is None:
                with open(f"{self._root}/sys/kernel/random/boot_id", "rb") as file:
                    self._boot_id = file.read().decode("ascii", "replace").strip()
        except OSError:
            return None
        if len(fields) < 20 or fields[0] in (b"Z", b"X"):
            return None
        return f"{self._boot_id}:{fields[19].decode('ascii', 'replace')}"

    def signal_group(self, pid: int, number: int) -> None:
        """See ``ProcessTable.signal_group``."""
        try:
            os.killpg(pid, number)
        except (ProcessLookupError, PermissionError):
            return

    def group_lives(self, pid: int) -> bool:
        """See ``ProcessTable.group_lives``. As long as somebody is in a group its id means no other."""
        try:
            os.killpg(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True
