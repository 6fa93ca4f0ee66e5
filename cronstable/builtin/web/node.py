"""How loaded this node is, by its control group where it has one (v2), and by the machine where it has none."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from cronstable.api import FileSystem, Host, Instant, Json
from cronstable.builtin.web.settings import NodeHistory

MOUNT: Final = "/sys/fs/cgroup"
SAMPLE: Final = 5.0
"""Seconds that one look may take."""
WHOLE_EVERY: Final = 300.0
"""Seconds between looks at everything, limits included; between them only what moves is read."""
_MOVING: Final = "/proc/stat", "/proc/meminfo"
_LONGEST: Final = 65536
_HEAD: Final = 256


@dataclass(frozen=True, slots=True)
class Usage:
    """What was read at one instant. ``cpu``: seconds of processors used so far, by all that shares ``cores``.

    ``source``: ``cgroup-v2`` when a control group limits or counts it, else ``host``. Sizes in bytes.
    """

    at: float
    boot: float
    source: str
    cpu: float
    cores: float
    memory_used: int
    memory_total: int
    load: tuple[float, ...]
    own_cpu: float
    own_rss: int
    own_threads: int
    plain: bool = False
    """The files of the machine are the kernel's own, and never wait."""


class Sample(NamedTuple):
    """What moves, at one instant, and the whole look that says of what. Taken all day long, so it is a cheap value.

    ``cpu`` and ``memory_used`` as in ``Usage``.
    """

    whole: Usage
    when: Instant
    cpu: float
    memory_used: int

    def usage(self) -> Usage:
        """As much as this says of everything."""
        wall, boot = self.when
        return replace(self.whole, at=wall, boot=boot, cpu=self.cpu, memory_used=self.memory_used)


@dataclass(frozen=True, slots=True)
class Group:
    """A control group and those above it: the tightest limits, None where there is none, and what it used."""

    cpu_used: float | None = None
    cpu_limit: float | None = None
    memory_used: int | None = None
    memory_limit: int | None = None


class NodeLoad:
    """Looks at the machine, now and then or when asked. Nothing of it is kept when the service ends."""

    def __init__(self, host: Host, history: NodeHistory) -> None:
        self._host = host
        self._history = history
        self._points: deque[list[float | None]] = deque(maxlen=history.points)
        self._last: Sample | None = None
        self._percent: float | None = None
        self._whole: Usage | None = None

    async def run(self) -> None:
        """Take a sample every ``interval`` seconds until cancelled; none when it is not wanted."""
        while self._history.enabled:
            now = self._host.clock.now()
            whole = self._whole
            moved = glance(self._host.fs, whole) if whole and now.boot - whole.boot < WHOLE_EVERY else None
            if whole is None or moved is None:
                await self.sample()
            else:
                self._note(Sample(whole, now, *moved))
            # At whole multiples, so that an idle daemon wakes up once for all looks that have no time of their own.
            await self._host.clock.sleep(self._history.interval - now.boot % self._history.interval)

    async def sample(self) -> None:
        """Look once, and keep it. A machine that cannot be looked at costs the sample, and a line in the log."""
        usage = await self._look()
        if usage is not None:
            self._note(Sample(usage, Instant(usage.at, usage.boot), usage.cpu, usage.memory_used))

    async def _look(self) -> Usage | None:
        try:
            usage = await self._host.threads.run(lambda: look(self._host), timeout=SAMPLE, lane="web")
        except Exception as error:  # noqa: BLE001 - psutil raises its own on odd machines; nothing hangs on a sample
            self._host.log.debug("web: this node's load is not known: %s", type(error).__name__)
            return None
        self._whole = usage
        return usage

    def _note(self, now: Sample) -> None:
        percent = cpu_percent(self._last, now)
        self._last = now
        if percent is not None:
            self._percent = percent
        total = now.whole.memory_total
        memory = round(100 * now.memory_used / total, 2) if total else None
        self._points.append([round(now.when.wall, 3), percent, memory])

    async def document(self, node: str) -> dict[str, Json]:
        """GET /node."""
        if not self._history.enabled or self._last is None:
            await self.sample()
        if self._last is None:
            return {"node_name": node, "resources": None}
        last, percent = self._last, self._percent
        usage = self._whole or last.whole
        if usage.boot < last.when.boot:
            # Kept samples are glances, which leave out what only this answer tells.
            usage = await self._look() or last.usage()
        return {"node_name": node, "resources": resources(usage, percent)}

    def history(self, node: str) -> dict[str, Json]:
        """GET /node/history."""
        points: list[Json] = [[*point] for point in self._points] if self._history.enabled else []
        interval = self._history.interval
        return {"node_name": node, "enabled": self._history.enabled, "interval": interval, "points": points}


def cpu_percent(before: Sample | None, now: Sample) -> float | None:
    """The share of what is there that was used between two looks, 0 to 100; None without two of one kind."""
    if before is None or before.whole.source != now.whole.source:
        return None
    passed, cores = now.when.boot - before.when.boot, now.whole.cores
    if passed <= 0 or cores <= 0:
        return None
    used = (now.cpu - before.cpu) / passed / cores
    return round(max(0.0, min(1.0, used)) * 100, 2)


def resources(usage: Usage, percent: float | None) -> dict[str, Json]:
    """The block ``resources`` of GET /node."""
    total = usage.memory_total
    return {
        "source": usage.source,
        "cpu_percent": percent,
        "cpu_cores": round(usage.cores, 3),
        "memory_used_bytes": usage.memory_used,
        "memory_total_bytes": total,
        "memory_percent": round(100 * usage.memory_used / total, 2) if total else None,
        "load_average": [round(value, 2) for value in usage.load],
        "process": {
            "cpu_seconds": round(usage.own_cpu, 3),
            "rss_bytes": usage.own_rss,
            "threads": usage.own_threads,
        },
    }


@dataclass(frozen=True, slots=True)
class Machine:
    """The whole machine and this process. ``busy``: seconds of all processors since the boot. Sizes in bytes."""

    busy: float
    memory_used: int
    memory_total: int
    own_cpu: float
    own_rss: int
    own_threads: int


def look(host: Host) -> Usage:
    """Ask the system. Blocking."""
    now = host.clock.now()
    machine = read_proc(host.fs) or _ask_psutil()
    cores = float(os.cpu_count() or 1)
    group = read_group(host.fs)
    limited = group.cpu_limit is not None or group.memory_limit is not None
    grouped = limited and group.cpu_used is not None and group.memory_used is not None
    total = machine.memory_total
    return Usage(
        at=now.wall,
        boot=now.boot,
        source="cgroup-v2" if grouped else "host",
        cpu=group.cpu_used if grouped and group.cpu_used is not None else machine.busy,
        cores=min(cores, group.cpu_limit or cores) if grouped else cores,
        memory_used=group.memory_used if grouped and group.memory_used is not None else machine.memory_used,
        memory_total=min(total, group.memory_limit or total) if grouped else total,
        load=os.getloadavg(),
        own_cpu=machine.own_cpu,
        own_rss=machine.own_rss,
        own_threads=machine.own_threads,
        plain=_is_plain(host.fs),
    )


def glance(fs: FileSystem, whole: Usage) -> tuple[float, int] | None:
    """Seconds of processors and bytes of memory used by now on the machine of ``whole``; None: look at everything.

    Called on the event loop, where nothing may wait: these files are the kernel's own memory, unless somebody has
    mounted a file system of a program over them, as lxcfs does. A control group is always looked at whole.
    """
    if whole.source != "host" or not whole.plain:
        return None
    busy = _busy(_bytes(fs, _MOVING[0], _HEAD))
    memory = _bytes(fs, _MOVING[1], _HEAD).split(None, 8)
    if busy is None or len(memory) < 9 or memory[0:7:3] != [b"MemTotal:", b"MemFree:", b"MemAvailable:"]:
        return None
    return busy, whole.memory_total - 1024 * int(memory[7])


def _is_plain(fs: FileSystem) -> bool:
    mounts = fs.mounts()
    return mounts is not None and not any(f" {path} " in mounts for path in _MOVING)


def _busy(text: bytes) -> float | None:
    """Seconds of all processors that were not idle, by the first line of /proc/stat (proc(5))."""
    words = text.split(b"\n", 1)[0].split(None, 9)
    if len(words) < 9 or words[0] != b"cpu":
        return None
    return (sum(map(int, words[1:4])) + sum(map(int, words[6:9]))) / os.sysconf("SC_CLK_TCK")


def read_proc(fs: FileSystem) -> Machine | None:
    """What Linux says in three files (proc(5)), else None. Time that guests used is in ``user`` already."""
    busy = _busy(_bytes(fs, "/proc/stat", _LONGEST))
    memory = {row[0]: int(row[1]) for row in _rows(_text(fs, "/proc/meminfo")) if len(row) == 3 and row[1].isdigit()}
    own = (_text(fs, "/proc/self/stat") or "").rpartition(")")[2].split()
    if busy is None or not {"MemTotal:", "MemAvailable:"} <= memory.keys() or len(own) < 22:
        return None
    tick = os.sysconf("SC_CLK_TCK")
    return Machine(
        busy=busy,
        memory_used=1024 * (memory["MemTotal:"] - memory["MemAvailable:"]),
        memory_total=1024 * memory["MemTotal:"],
        own_cpu=(int(own[11]) + int(own[12])) / tick,
        own_rss=int(own[21]) * os.sysconf("SC_PAGE_SIZE"),
        own_threads=int(own[17]),
    )


def _ask_psutil() -> Machine:
    # Here and not above: it costs a daemon a MiB, and is only needed where there is no /proc.
    import psutil

    cpu, memory, own = psutil.cpu_times(), psutil.virtual_memory(), psutil.Process()
    with own.oneshot():
        own_cpu, own_rss, own_threads = own.cpu_times(), own.memory_info().rss, own.num_threads()
    idle = cpu.idle + sum(getattr(cpu, name, 0.0) for name in ("iowait", "guest", "guest_nice"))
    return Machine(
        busy=sum(cpu) - idle,
        memory_used=memory.total - memory.available,
        memory_total=memory.total,
        own_cpu=own_cpu.user + own_cpu.system,
        own_rss=own_rss,
        own_threads=own_threads,
    )


def read_group(fs: FileSystem) -> Group:
    """The control group of this process, version 2, by its files. All None where there is none.

    A limit of a group above holds too, so that the tightest one counts; what is used is the group's own. Memory that
    the kernel can take back at once (inactive file pages) is not counted as used.
    """
    membership = _text(fs, "/proc/self/cgroup")
    path = next((line[3:] for line in (membership or "").splitlines() if line.startswith("0::/")), None)
    if path is None or ".." in path:
        return Group()
    levels = _levels(path)
    quotas = [limit for level in levels if (limit := _cores(_text(fs, f"{level}/cpu.max"))) is not None]
    maxima = [limit for level in levels if (limit := _number(_text(fs, f"{level}/memory.max"))) is not None]
    own = levels[0]
    used, stat = _number(_text(fs, f"{own}/memory.current")), _fields(_text(fs, f"{own}/memory.stat"))
    spent = _fields(_text(fs, f"{own}/cpu.stat")).get("usage_usec")
    return Group(
        cpu_used=None if spent is None else spent / 1e6,
        cpu_limit=min(quotas, default=None),
        memory_used=None if used is None else max(0, used - stat.get("inactive_file", 0)),
        memory_limit=min(maxima, default=None),
    )


def _levels(path: str) -> Sequence[str]:
    """Directories of the group and of those above it, its own first."""
    parts = [part for part in path.split("/") if part]
    return ["/".join([MOUNT, *parts[:depth]]) for depth in range(len(parts), -1, -1)]


def _text(fs: FileSystem, path: str) -> str | None:
    return _bytes(fs, path, _LONGEST).decode("ascii", "replace") or None


def _bytes(fs: FileSystem, path: str, longest: int) -> bytes:
    """The beginning of a file; nothing of one that cannot be read."""
    try:
        fd = fs.open(path, os.O_RDONLY)
        try:
            return fs.read(fd, longest)
        finally:
            fs.close(fd)
    except OSError:
        return b""


def _number(text: str | None) -> int | None:
    word = (text or "").strip()
    return int(word) if word.isdigit() else None


def _cores(text: str | None) -> float | None:
    """``cpu.max``: a quota and its period in microseconds, or ``max``."""
    words = (text or "").split()
    if len(words) != 2 or not words[0].isdigit() or not words[1].isdigit() or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1])


def _fields(text: str | None) -> dict[str, int]:
    return {row[0]: int(row[1]) for row in _rows(text) if len(row) == 2 and row[1].isdigit()}


def _rows(text: str | None) -> list[list[str]]:
    return [line.split() for line in (text or "").splitlines()]
