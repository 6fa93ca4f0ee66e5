"""Finding plugins: every distribution, once, whatever state it is in."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path

import pytest

from cronstable.plugin import discovery
from cronstable.plugin.discovery import Found, discover

Install = Callable[..., str]


def found(name: str, disabled: frozenset[str] = frozenset()) -> Found:
    (one,) = [entry for entry in discover(disabled) if entry.plugin.name == name]
    return one


def test_a_plugin_is_found_with_its_distribution_and_version(install: Install) -> None:
    module = install("acme-redis", "VALUE = 1", name="redis", version="3.1")
    plugin = found("redis").plugin
    assert (plugin.distribution, plugin.version, plugin.module, plugin.builtin) == ("acme-redis", "3.1", module, False)
    assert found("redis").namespace is not None
    assert str(plugin) == "redis (acme-redis 3.1)"


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("import acme_absent", "ModuleNotFoundError: No module named 'acme_absent'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("assert False, 'on Windows only'", "AssertionError: on Windows only"),
        ("raise SystemExit('no licence')", "SystemExit: no licence"),
        ("def broken(:", "SyntaxError: invalid syntax"),
        ("raise RuntimeError('two\\nlines')", "RuntimeError: two lines"),
    ],
)
def test_a_plugin_that_does_not_import_is_found_with_the_cause(install: Install, code: str, cause: str) -> None:
    install("acme-broken", code, name="broken")
    install("acme-sound", "VALUE = 1", name="sound")
    assert found("broken").namespace is None
    assert (found("broken").error or "").startswith(cause)
    assert found("sound").error is None


def test_an_entry_point_whose_attribute_is_missing_is_found_with_the_cause(install: Install) -> None:
    install("acme-attr", "VALUE = 1", name="attr", target="acme_attr:plugin")
    assert found("attr").error == "AttributeError: module 'acme_attr' has no attribute 'plugin'"


def test_an_entry_point_that_is_none_is_found_with_the_cause(install: Install) -> None:
    install("acme-none", "plugin = None", name="none", target="acme_none:plugin")
    assert found("none").error == "acme_none:plugin is None, not a module or object with hooks"


@pytest.mark.parametrize("between", [(), ("aaa", "zzz"), ("twin-a",)], ids=["adjacent", "apart", "similar"])
def test_one_name_of_two_distributions_is_an_error_of_both(install: Install, between: tuple[str, ...]) -> None:
    install("acme-first", "raise RuntimeError('imported')", name="twin", version="1.1")
    for name in between:
        install(f"acme-{name}", "VALUE = 1", name=name)
    install("acme-second", "raise RuntimeError('imported')", name="twin", version="2.2")
    twins = [entry for entry in discover(frozenset()) if entry.plugin.name == "twin"]
    assert [twin.plugin.distribution for twin in twins] == ["acme-first", "acme-second"]
    for twin in twins:
        assert twin.error is not None
        assert "claimed by acme-first 1.1 and acme-second 2.2" in twin.error
    assert all(found(name).error is None for name in between)


def test_two_distributions_with_the_very_same_entry_are_both_seen(install: Install) -> None:
    install("acme-one", "VALUE = 1", name="same", target="acme_one")
    install("acme-two", "VALUE = 1", name="same", target="acme_one")
    assert sum(entry.plugin.name == "same" for entry in discover(frozenset())) == 2


def test_a_disabled_plugin_is_listed_but_not_imported(install: Install) -> None:
    install("acme-off", "raise RuntimeError('imported')", name="off")
    one = found("off", disabled=frozenset({"off"}))
    assert (one.disabled, one.namespace, one.error) == (True, None, None)


def test_the_listing_is_sorted_whatever_the_order_on_the_path(install: Install) -> None:
    for name in ("acme-c", "acme-a", "acme-b"):
        install(name, "VALUE = 1")
    names = [entry.plugin.name for entry in discover(frozenset()) if entry.plugin.name.startswith("acme-")]
    assert names == ["acme-a", "acme-b", "acme-c"]


def test_metadata_without_a_version_does_not_stop_the_listing(install: Install, tmp_path: Path) -> None:
    install("acme-torn", "VALUE = 1", name="torn")
    (metadata,) = tmp_path.glob("installed/acme-torn/*.dist-info/METADATA")
    metadata.write_text("Metadata-Version: 2.1\nName: acme-torn\n")
    assert found("torn").plugin.version == "unknown"


def test_the_environment_is_read_once_and_no_cache_is_written(
    install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install("acme-once", "VALUE = 1")
    groups: list[str] = []
    listing = importlib.metadata.entry_points

    def counted(*, group: str) -> importlib.metadata.EntryPoints:
        groups.append(group)
        return listing(group=group)

    monkeypatch.setattr(discovery, "entry_points", counted)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    names = [entry.plugin.name for entry in discover(frozenset())]
    assert "acme-once" in names
    assert groups == ["cronstable.plugins"]
    assert not (tmp_path / "cache").exists()


def test_a_plugin_installed_later_is_seen_at_the_next_look(install: Install) -> None:
    discover(frozenset())
    install("acme-late", "VALUE = 1", name="late")
    assert found("late").error is None


def test_the_time_of_an_import_is_measured_with_the_given_timer(install: Install) -> None:
    install("acme-timed", "VALUE = 1", name="timed")
    readings = iter(range(1000))
    (one,) = [e for e in discover(frozenset(), lambda: float(next(readings))) if e.plugin.name == "timed"]
    assert one.took == 1.0
