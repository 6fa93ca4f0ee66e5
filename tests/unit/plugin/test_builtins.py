"""The host's own plugins pass what strangers pass; the part that costs time at a start is paid here."""

from __future__ import annotations

import pytest

from cronstable.plugin.builtins import BUILTIN_MODULES
from cronstable.plugin.manager import Plugins, Provided, load_plugins
from cronstable.plugin.validate import check, prove_schemas


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return load_plugins({})


def provided(plugins: Plugins) -> list[Provided]:  # type: ignore[type-arg]  # one of each kind
    by_name = (plugins.election_backends, plugins.state_stores, plugins.notifiers, plugins.services)
    return [one for mapping in (*by_name, plugins.cli_commands) for one in mapping.values()] + list(plugins.fragments)


def test_every_builtin_is_usable(plugins: Plugins) -> None:
    builtins = [health for health in plugins.health if health.plugin.builtin]
    assert [health.plugin.module for health in builtins] == list(BUILTIN_MODULES)
    assert [(health.plugin.name, health.error) for health in builtins if not health.ok] == []


def test_every_builtin_descriptor_is_sound_and_its_examples_are_valid(plugins: Plugins) -> None:
    own = [one for one in provided(plugins) if one.plugin.builtin]
    assert own
    for one in own:
        check(one.descriptor)
        prove_schemas(one.descriptor)
