"""The catalogue: which plugin provides what, typed, and what is wrong with those that could not be used.

pluggy checks hooks against their specification and is asked once, at start; what the hooks yield is kept as plain
mappings, so nothing that runs later goes through it. A plugin is used whole or not at all: half of one would turn its
other half's configuration into unknown keys.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Generic, TextIO, TypeVar

import pluggy

from cronstable import __version__
from cronstable.core.finding import Problem
from cronstable.core.job import Json
from cronstable.plugin import hints, hookspecs
from cronstable.plugin.builtins import BUILTIN_MODULES
from cronstable.plugin.descriptors import (
    CliCommand,
    ConfigFragment,
    Descriptor,
    ElectionBackend,
    NotifierBackend,
    ServiceProvider,
    StateStoreBackend,
)
from cronstable.plugin.discovery import Found, PluginInfo, cause, discover, listed
from cronstable.plugin.errors import PluginError
from cronstable.plugin.trust import trust_store_on_demand
from cronstable.plugin.validate import check, key_paths, prove_schemas

__all__ = ["PluginHealth", "PluginInfo", "Plugins", "Provided", "load_factory", "load_plugins"]

T = TypeVar("T")
D = TypeVar("D", bound=Descriptor)

DISABLED_VARIABLE = "CRONSTABLE_DISABLED_PLUGINS"
TRACE_VARIABLE = "CRONSTABLE_TRACE_PLUGINS"

_CHECK_CONFIG = "cronstable_check_config"

_YIELDS: Mapping[str, tuple[str, type[Descriptor]]] = MappingProxyType(
    {
        "cronstable_election_backends": (hints.ELECTION_BACKEND, ElectionBackend),
        "cronstable_state_stores": (hints.STATE_STORE, StateStoreBackend),
        "cronstable_notifiers": (hints.NOTIFIER, NotifierBackend),
        "cronstable_config_fragments": ("configuration fragment", ConfigFragment),
        "cronstable_services": ("service", ServiceProvider),
        "cronstable_cli_commands": ("command", CliCommand),
    }
)
"""Hook to the kind of thing that it yields, as it is written in ``provides`` and asked for in ``why_missing``."""

KEY = "configuration key"
"""The kind of a key path, which fragments and sections own."""


@dataclass(frozen=True, slots=True)
class Provided(Generic[T]):
    """A descriptor and the plugin that yielded it."""

    descriptor: T
    plugin: PluginInfo


@dataclass(frozen=True, slots=True)
class PluginHealth:
    """How a plugin fared. Neither a broken nor a disabled one is used.

    ``hooks``: the hooks it implements. ``provides``: ``"kind:name"`` of what they yielded, in that order; of a broken
    plugin, what it yielded before it broke.
    """

    plugin: PluginInfo
    ok: bool
    error: str | None = None
    hooks: tuple[str, ...] = ()
    disabled: bool = False
    provides: tuple[str, ...] = ()


_CheckConfig = Callable[[Mapping[str, Json]], Iterable[Problem]]


@dataclass(frozen=True, slots=True)
class Plugins:
    """Everything that the usable plugins provide; builtins first, then third parties by name.

    ``unknown_disabled``: names in CRONSTABLE_DISABLED_PLUGINS that no plugin has.
    """

    election_backends: Mapping[str, Provided[ElectionBackend]]
    state_stores: Mapping[str, Provided[StateStoreBackend]]
    notifiers: Mapping[str, Provided[NotifierBackend]]
    services: Mapping[str, Provided[ServiceProvider]]
    cli_commands: Mapping[str, Provided[CliCommand]]
    fragments: tuple[Provided[ConfigFragment], ...]
    health: tuple[PluginHealth, ...]
    unknown_disabled: tuple[str, ...] = ()
    _checks: tuple[tuple[PluginInfo, _CheckConfig], ...] = field(default=(), repr=False)

    def check_config(self, config: Mapping[str, Json]) -> Iterator[tuple[PluginInfo, Problem]]:
        """What the plugins say about one file's document, which they must not change.

        A check that raises or yields something else is a problem of the configuration that names the plugin: it might
        have refused what would then go unchecked.
        """
        for plugin, hook in self._checks:
            try:
                for problem in _iterate(hook(config)):
                    if not isinstance(problem, Problem):
                        raise PluginError(f"it yielded a {type(problem).__name__}, not a Problem")
                    yield plugin, problem
            except (Exception, SystemExit) as error:  # noqa: BLE001  # a stranger's code; its failure is a finding
                failed = f"the check of plugin {plugin} failed: {cause(error)}"
                yield plugin, Problem(path=(), message=failed, hint=_remedy(plugin))

    def warnings(self) -> Iterator[str]:
        """One line for each broken plugin and for each disabled name that does not exist."""
        for health in self.health:
            if health.error is not None:
                yield f"plugin {health.plugin} cannot be used: {health.error}"
        for name in self.unknown_disabled:
            yield f"{DISABLED_VARIABLE} names {name!r}, which no installed plugin is called"

    def why_missing(self, kind: str, name: str) -> str | None:
        """Why nothing provides ``name``, for the end of an error message; None when nothing is known of it.

        ``kind``: as in ``provides``, or ``KEY`` (``name`` is then a dotted key path).
        """
        known = hints.path_provider(name) if kind == KEY else hints.provider(kind, name)
        broken = [health for health in self.health if health.error is not None]
        for health in broken:
            if f"{kind}:{name}" in health.provides or health.plugin.distribution == known:
                return f"plugin {health.plugin} provides it but cannot be used: {health.error}"
        disabled = [health.plugin for health in self.health if health.disabled]
        for plugin in disabled:
            if plugin.distribution == known:
                return f"plugin {plugin} provides it but is disabled by {DISABLED_VARIABLE}"
        if known is not None:
            return f"{known} provides it; install it with: {hints.install_line(known)}"
        # What failed before it yielded anything can have been the one.
        silent = [f"{health.plugin}: {health.error}" for health in broken if not health.provides]
        if silent:
            return f"it may come from a plugin that cannot be used: {'; '.join(silent)}"
        if disabled:
            return f"it may come from a plugin that {DISABLED_VARIABLE} disables: {listed(map(str, disabled))}"
        return None


def load_plugins(
    environ: Mapping[str, str],
    *,
    timer: Callable[[], float] | None = None,
    trace_to: TextIO | None = None,
    builtins: tuple[str, ...] = BUILTIN_MODULES,
) -> Plugins:
    """Find, import, check and catalogue the builtins and every installed plugin.

    Never raises for a broken plugin and prints nothing: ``health`` has it all, and ``warnings()`` in words. With
    CRONSTABLE_TRACE_PLUGINS set to anything but ``0`` a trace goes to ``trace_to`` (stderr when None), with the time of
    each import when there is a ``timer`` (seconds).
    """
    disabled = frozenset(filter(None, map(str.strip, environ.get(DISABLED_VARIABLE, "").split(","))))
    catalogue = pluggy.PluginManager(hookspecs.PROJECT)
    catalogue.add_hookspecs(hookspecs)
    found = [_builtin(module, disabled, timer) for module in builtins]
    loaded = [_load(catalogue, one) for one in found]
    # Only now: whatever a third party does at import, the builtins are in the catalogue already.
    third_parties = discover(disabled, timer)
    loaded += [_load(catalogue, one) for one in third_parties]
    _refuse_duplicates(loaded)
    if environ.get(TRACE_VARIABLE, "0") not in ("", "0"):
        _trace(loaded, trace_to or sys.stderr)
    return _catalogued(loaded, disabled)


def load_factory(target: str, provided: Provided[T]) -> Callable[..., object]:
    """The callable that ``"module:attribute"`` names; ``PluginError`` names the plugin and the cause."""
    module, _, attributes = target.partition(":")
    try:
        with trust_store_on_demand():
            found: object = importlib.import_module(module)
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
    except (Exception, SystemExit) as error:  # a stranger's module again
        raise PluginError(f"plugin {provided.plugin} cannot be used: {target} did not load: {cause(error)}") from error
    if not callable(found):
        raise PluginError(f"plugin {provided.plugin} cannot be used: {target} is not callable")
    return found


@dataclass(slots=True)
class _Loaded:
    """A plugin on its way into the catalogue."""

    found: Found
    error: str | None = None
    hooks: tuple[str, ...] = ()
    descriptors: list[Descriptor] = field(default_factory=list)
    check_config: list[_CheckConfig] = field(default_factory=list)

    @property
    def plugin(self) -> PluginInfo:
        return self.found.plugin

    @property
    def usable(self) -> bool:
        return self.error is None and not self.found.disabled

    def provides(self) -> tuple[str, ...]:
        return tuple(f"{kind}:{name}" for kind, name in map(_kind_and_name, self.descriptors))


def _builtin(module: str, disabled: frozenset[str], timer: Callable[[], float] | None) -> Found:
    plugin = PluginInfo(module.removeprefix("cronstable."), "cronstable", __version__, module, builtin=True)
    if plugin.name in disabled:
        return Found(plugin, disabled=True)
    begin = timer() if timer else 0.0
    try:
        namespace = importlib.import_module(module)
    except Exception as error:  # noqa: BLE001  # a missing dependency; the message must be as good as a stranger's
        return Found(plugin, error=cause(error))
    return Found(plugin, namespace=namespace, took=timer() - begin if timer else None)


def _load(catalogue: pluggy.PluginManager, found: Found) -> _Loaded:
    """Register, check the hooks and read them."""
    loaded = _Loaded(found, error=found.error)
    if found.namespace is None:
        return loaded
    name = f"{found.plugin.distribution}:{found.plugin.name}"
    try:
        _refuse_second_registration(catalogue, found)
        catalogue.register(found.namespace, name)
        hooks = _hooks_of(catalogue, name)
        loaded.hooks = tuple(sorted(hooks))
        for hook, implementations in hooks.items():
            for implementation in implementations:
                _read(hook, implementation, loaded)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # a stranger's code; its failure is its health
        loaded.error = str(error) if isinstance(error, PluginError) else cause(error)
        # pluggy keeps a plugin whose validation failed, and would go on calling it.
        if catalogue.has_plugin(name):
            catalogue.unregister(name=name)
    return loaded


def _refuse_second_registration(catalogue: pluggy.PluginManager, found: Found) -> None:
    other = catalogue.get_name(found.namespace)
    if other is not None:
        raise PluginError(f"{found.plugin.module} is already loaded as {other}; one of the two entry points must go")


def _hooks_of(catalogue: pluggy.PluginManager, name: str) -> dict[str, list[Callable[..., object]]]:
    """The hooks that a registered plugin implements, in the order of the specification."""
    plugin = catalogue.get_plugin(name)
    callers = {caller.name: caller for caller in catalogue.get_hookcallers(plugin) or ()}
    known = (*_YIELDS, _CHECK_CONFIG)
    for hook in callers:
        if hook not in known:
            raise PluginError(f"it implements an unknown hook {hook}; the hooks are {listed(known)}")
    hooks: dict[str, list[Callable[..., object]]] = {}
    for hook in filter(callers.__contains__, known):
        for implementation in callers[hook].get_hookimpls():
            if implementation.plugin_name == name:
                hooks.setdefault(hook, []).append(_plain_function(hook, implementation))
    if not hooks:
        raise PluginError("it implements no hook; mark its functions with cronstable.api.hookimpl")
    return hooks


def _plain_function(hook: str, implementation: pluggy.HookImpl) -> Callable[..., object]:
    function = implementation.function
    if implementation.wrapper or implementation.hookwrapper:
        raise PluginError(f"{hook} is a hook wrapper; each plugin speaks for itself only")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise PluginError(f"{hook} is async; hooks are plain functions, called before there is an event loop")
    if hook == _CHECK_CONFIG and "config" not in implementation.argnames:
        raise PluginError(f"{hook} takes no argument; its signature is {hook}(config)")
    return function


def _read(hook: str, function: Callable[..., object], loaded: _Loaded) -> None:
    if hook == _CHECK_CONFIG:
        loaded.check_config.append(_typed_check(function))
        return
    kind, expected = _YIELDS[hook]
    for descriptor in _iterate(function()):
        if not isinstance(descriptor, expected):
            raise PluginError(f"{hook} yielded a {type(descriptor).__name__}, not a {expected.__name__}")
        loaded.descriptors.append(descriptor)
        try:
            check(descriptor)
            if not loaded.plugin.builtin:
                prove_schemas(descriptor)
        except PluginError as error:
            raise PluginError(f"{kind} {_kind_and_name(descriptor)[1]}: {error}") from error


def _typed_check(function: Callable[..., object]) -> _CheckConfig:
    """A hook with the type of its specification; what it yields is checked as it comes."""

    def call(config: Mapping[str, Json]) -> Iterable[Problem]:
        return _iterate(function(config=config))  # type: ignore[return-value]  # each item is checked by the caller

    return call


def _iterate(result: object) -> Iterable[object]:
    """What a hook returned, one by one; a hook without a ``return`` has nothing to say."""
    if result is None:
        return ()
    if isinstance(result, Iterable) and not isinstance(result, str | bytes | Mapping):
        return result
    raise PluginError(f"a hook returned a {type(result).__name__}; it must yield, or return a list")


def _kind_and_name(descriptor: Descriptor) -> tuple[str, str]:
    name = descriptor.id if isinstance(descriptor, ConfigFragment) else descriptor.name
    return next(kind for kind, cls in _YIELDS.values() if isinstance(descriptor, cls)), name


def _refuse_duplicates(loaded: list[_Loaded]) -> None:
    """Two providers of one thing: the error names all of them, no third party of them is used, a builtin stays.

    All claims are collected before anybody is refused, so the outcome does not depend on the order of the listing.
    """
    claims: dict[tuple[str, str], list[_Loaded]] = {}
    for one in filter(lambda one: one.usable, loaded):
        for descriptor in one.descriptors:
            claims.setdefault(_kind_and_name(descriptor), []).append(one)
            for path in key_paths(descriptor):
                claims.setdefault((KEY, path), []).append(one)
    errors: dict[int, list[str]] = {}
    for (kind, name), claimants in claims.items():
        if len(claimants) > 1:
            providers = listed(dict.fromkeys(str(one.plugin) for one in claimants))
            twice = " twice" if len({id(one) for one in claimants}) == 1 else ""
            for one in claimants:
                if not one.plugin.builtin or twice:
                    errors.setdefault(id(one), []).append(f"{kind} {name!r} is provided by {providers}{twice}")
    for one in loaded:
        if id(one) in errors:
            one.error = "; ".join(dict.fromkeys(errors[id(one)])) + "; only one plugin can provide it"


def _by_name(loaded: list[_Loaded], cls: type[D]) -> Mapping[str, Provided[D]]:
    provided: dict[str, Provided[D]] = {}
    for one in loaded:
        for descriptor in one.descriptors:
            if isinstance(descriptor, cls):
                provided[_kind_and_name(descriptor)[1]] = Provided(descriptor, one.plugin)
    return MappingProxyType(provided)


def _catalogued(loaded: list[_Loaded], disabled: frozenset[str]) -> Plugins:
    usable = [one for one in loaded if one.usable]
    return Plugins(
        election_backends=_by_name(usable, ElectionBackend),
        state_stores=_by_name(usable, StateStoreBackend),
        notifiers=_by_name(usable, NotifierBackend),
        services=_by_name(usable, ServiceProvider),
        cli_commands=_by_name(usable, CliCommand),
        fragments=tuple(_by_name(usable, ConfigFragment).values()),
        health=tuple(
            PluginHealth(
                plugin=one.plugin,
                ok=one.usable,
                error=one.error,
                hooks=one.hooks,
                disabled=one.found.disabled,
                provides=one.provides(),
            )
            for one in loaded
        ),
        unknown_disabled=tuple(sorted(disabled - {one.plugin.name for one in loaded})),
        _checks=tuple((one.plugin, hook) for one in usable for hook in one.check_config),
    )


def _remedy(plugin: PluginInfo) -> str:
    return f"report it to the authors of {plugin.distribution}, or set {DISABLED_VARIABLE}={plugin.name}"


def _trace(loaded: list[_Loaded], out: TextIO) -> None:
    for one in loaded:
        took = "" if one.found.took is None else f" in {one.found.took * 1000:.1f} ms"
        if one.found.disabled:
            state = f"disabled by {DISABLED_VARIABLE}"
        elif one.found.namespace is None:
            state = "not imported"
        else:
            state = f"imported {one.plugin.module}{took}"
        print(f"cronstable plugins: {one.plugin}: {state}", file=out)
        for hook in one.hooks:
            kind = _YIELDS[hook][0] if hook in _YIELDS else ""
            gave = [item for item in one.provides() if item.startswith(f"{kind}:")] if kind else ["checks"]
            print(f"cronstable plugins:   {hook}: {', '.join(gave) or 'nothing'}", file=out)
        if one.error is not None:
            print(f"cronstable plugins:   cannot be used: {one.error}", file=out)
