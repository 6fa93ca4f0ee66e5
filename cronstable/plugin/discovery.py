"""Which plugins are installed: the only use of stevedore, and only as the doorway.

stevedore's own list comes from a cache on disk, carries no distribution and drops the entry of a second distribution
that looks the same; so the list is read afresh from the metadata of the environment, once, and stevedore loads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib.metadata import Distribution, EntryPoint, entry_points

from stevedore.extension import ExtensionManager

from cronstable.core.values import dataclass
from cronstable.plugin.hookspecs import ENTRY_POINT_GROUP


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """Where a plugin comes from. ``name``: of its entry point; ``module``: what that points to."""

    name: str
    distribution: str
    version: str
    module: str
    builtin: bool

    def __str__(self) -> str:
        return f"{self.name} ({self.distribution} {self.version})"


@dataclass(frozen=True, slots=True)
class Found:
    """One entry point of the group. ``namespace``: what it loaded, None when it did not; then ``error`` says why.

    A disabled plugin is not loaded and has no error. ``took``: seconds of import, None without a timer.
    """

    plugin: PluginInfo
    disabled: bool = False
    namespace: object | None = None
    error: str | None = None
    took: float | None = None


def cause(error: BaseException) -> str:
    """An exception as the one line that a log or a table has room for."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def listed(names: Iterable[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def discover(disabled: frozenset[str], timer: Callable[[], float] | None = None) -> tuple[Found, ...]:
    """Find and import every installed plugin, sorted by name and distribution. Never raises for a broken one.

    Two distributions with one name: neither is imported, since nothing says which one the operator meant.
    """
    doorway = _Doorway(disabled, timer)
    loaded = {id(extension.entry_point): extension.plugin for extension in doorway.extensions}
    found = []
    for entry in doorway.found:
        error = doorway.duplicates.get(entry.name) or entry.error
        namespace = loaded.get(id(entry))
        if entry.name in disabled:
            found.append(Found(entry.plugin, disabled=True))
        elif namespace is None and error is None:
            found.append(Found(entry.plugin, error=f"{entry.value} is None, not a module or object with hooks"))
        else:
            found.append(Found(entry.plugin, namespace=namespace, error=error, took=entry.took))
    return tuple(found)


def _origin(distribution: Distribution | None, key: str) -> str:
    """A line of the metadata, which can be incomplete on a disk; that must not stop the listing."""
    if distribution is None or key not in distribution.metadata:
        return "unknown"
    return distribution.metadata[key]


def _claimed_twice(name: str, same: Iterable[_Entry]) -> str:
    claimants = listed(f"{entry.plugin.distribution} {entry.plugin.version}" for entry in same)
    return f"the plugin name {name!r} is claimed by {claimants}, so none of them is used; uninstall all but one"


def _already_noted(doorway: ExtensionManager[object], entry: EntryPoint, error: BaseException) -> None:
    """stevedore would log the failure; the entry has it already, and the caller decides how loud it is."""


class _Entry(EntryPoint):
    """An entry point that remembers its distribution and how its import went."""

    plugin: PluginInfo
    error: str | None
    took: float | None

    def __init__(self, entry: EntryPoint, timer: Callable[[], float] | None) -> None:
        super().__init__(entry.name, entry.value, entry.group)
        name, version = _origin(entry.dist, "Name"), _origin(entry.dist, "Version")
        plugin = PluginInfo(entry.name, name, version, entry.value, builtin=False)
        # The base class forbids plain assignment.
        vars(self).update(dist=entry.dist, plugin=plugin, error=None, took=None, _timer=timer)

    def load(self) -> object:
        """Import it. Whatever goes wrong is an ImportError: stevedore lets AssertionError and SystemExit through."""
        timer: Callable[[], float] | None = vars(self)["_timer"]
        begin = timer() if timer else 0.0
        try:
            return super().load()
        except (Exception, SystemExit) as error:  # whatever a stranger's module does at import is its own failure
            vars(self).update(error=cause(error))
            raise ImportError(str(error)) from error
        finally:
            if timer:
                vars(self).update(took=timer() - begin)


class _Doorway(ExtensionManager[object]):
    def __init__(self, disabled: frozenset[str], timer: Callable[[], float] | None) -> None:
        self.found: tuple[_Entry, ...] = ()
        self.duplicates: dict[str, str] = {}
        self._disabled = disabled
        self._timer = timer
        super().__init__(ENTRY_POINT_GROUP, on_load_failure_callback=_already_noted)

    def list_entry_points(self) -> list[EntryPoint]:
        """What is to be loaded, read from the environment's metadata."""
        entries = [_Entry(entry, self._timer) for entry in entry_points(group=self.namespace)]
        entries.sort(key=lambda entry: (entry.name, entry.plugin.distribution, entry.value))
        self.found = tuple(entries)
        by_name: dict[str, list[_Entry]] = {}
        for entry in entries:
            by_name.setdefault(entry.name, []).append(entry)
        self.duplicates = {
            name: f"the name {name!r} is claimed by "
            + listed(f"{e.plugin.distribution} {e.plugin.version}" for e in same)
            for name, same in by_name.items()
            if len(same) > 1
        }
        return [entry for entry in entries if entry.name not in self._disabled and entry.name not in self.duplicates]
