"""The catalogue: a plugin is used whole or not at all, and says why not."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from cronstable.api import PluginError, Problem
from cronstable.plugin import hints
from cronstable.plugin.manager import KEY, PluginHealth, PluginInfo, Plugins, Provided, load_factory, load_plugins

Install = Callable[..., str]

BACKEND = """
    from cronstable.api import Capability, ElectionBackend, hookimpl

    @hookimpl
    def cronstable_election_backends():
        yield ElectionBackend(
            name="{name}",
            factory="{module}:make",
            schema={{
                "$id": "https://example.org/{name}",
                "type": "object",
                "properties": {{"url": {{"type": "string"}}}},
                "additionalProperties": False,
                "examples": [{{"url": "x"}}],
            }},
            capabilities=frozenset({{Capability.LEASE}}),
        )

    def make(context, host):
        return "made"
"""

HEADER = "from cronstable.api import *\nSCHEMA = {'$id': 'urn:x', 'type': 'object', 'examples': [{}], " + (
    "'additionalProperties': False}\n"
)


def backend(name: str, module: str = "acme_redis") -> str:
    return BACKEND.format(name=name, module=module)


def load(environ: dict[str, str] | None = None, **kwargs: object) -> Plugins:
    return load_plugins(environ or {}, builtins=(), **kwargs)  # type: ignore[arg-type]


def health(plugins: Plugins, name: str) -> PluginHealth:
    (one,) = [entry for entry in plugins.health if entry.plugin.name == name]
    return one


def error(plugins: Plugins, name: str) -> str:
    text = health(plugins, name).error
    assert text is not None
    assert not health(plugins, name).ok
    return text


def test_a_third_party_backend_is_in_the_catalogue_with_its_plugin(install: Install) -> None:
    install("acme-redis", backend("redis"), version="1.4")
    plugins = load()
    provided = plugins.election_backends["redis"]
    assert provided.descriptor.factory == "acme_redis:make"
    assert str(provided.plugin) == "acme-redis (acme-redis 1.4)"
    assert health(plugins, "acme-redis") == PluginHealth(
        plugin=provided.plugin,
        ok=True,
        hooks=("cronstable_election_backends",),
        provides=("election backend:redis",),
    )


def test_a_factory_is_imported_only_when_it_is_asked_for(install: Install) -> None:
    install("acme-redis", backend("redis", module="acme_never_imported"))
    assert load().election_backends["redis"].descriptor.factory == "acme_never_imported:make"


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("import acme_absent", "ModuleNotFoundError"),
        ("@hookimpl\ndef cronstable_elections(): ...", "unknown hook cronstable_elections; the hooks are cronstable_"),
        ("@hookimpl\ndef cronstable_services(settings): ...", "cronstable_services"),
        ("@hookimpl\ndef cronstable_check_config(): ...", "its signature is cronstable_check_config(config)"),
        ("@hookimpl\nasync def cronstable_services(): ...", "cronstable_services is async"),
        ("@hookimpl\nasync def cronstable_services():\n    yield 1", "cronstable_services is async"),
        ("@hookimpl(wrapper=True)\ndef cronstable_services():\n    return (yield)", "is a hook wrapper"),
        ("VALUE = 1", "it implements no hook; mark its functions with cronstable.api.hookimpl"),
        ("def cronstable_services(): ...", "it implements no hook"),
        (
            "@hookimpl\ndef cronstable_services():\n    yield 7",
            "cronstable_services yielded a int, not a ServiceProvider",
        ),
        (
            "@hookimpl\ndef cronstable_services():\n    yield CliCommand(name='a', help='b', target='c:d')",
            "yielded a CliCommand, not a ServiceProvider",
        ),
        ("@hookimpl\ndef cronstable_services():\n    return 'web'", "a hook returned a str"),
        ("@hookimpl\ndef cronstable_services():\n    raise SystemExit(3)", "SystemExit: 3"),
        ("@hookimpl\ndef cronstable_services():\n    yield ServiceProvider()", "TypeError: "),
        (
            "@hookimpl\ndef cronstable_services():\n    yield ServiceProvider(name='a', factory='b:c', api=(3, 1))",
            "service a: it was written for plugin API 3.1, this host speaks 2.0",
        ),
        (
            "@hookimpl\ndef cronstable_notifiers():\n"
            "    yield NotifierBackend(name='a', factory='b:c', schema={**SCHEMA, '$id': ''})",
            "notifier a: its schema has no $id",
        ),
        (
            "@hookimpl\ndef cronstable_notifiers():\n"
            "    yield NotifierBackend(name='a', factory='b:c', schema={**SCHEMA, 'examples': [3]})",
            "notifier a: example 0 of its schema is not valid: $: 3 is not of type 'object'",
        ),
        (
            "@hookimpl\ndef cronstable_config_fragments():\n"
            "    yield ConfigFragment(id='urn:f', schemas={'team': {'$ref': 'urn:other', 'examples': ['a']}})",
            "configuration fragment urn:f: the schema of team reaches outside itself: $ref 'urn:other'",
        ),
    ],
)
def test_a_broken_plugin_is_listed_with_the_cause_and_breaks_nothing_else(
    install: Install, code: str, cause: str
) -> None:
    install("acme-bad", HEADER + code, name="bad", version="0.9")
    install("acme-redis", backend("redis"))
    plugins = load()
    assert cause in error(plugins, "bad")
    assert "redis" in plugins.election_backends
    (warning,) = [line for line in plugins.warnings() if "bad" in line]
    assert warning.startswith("plugin bad (acme-bad 0.9) cannot be used: ")


def test_a_plugin_with_one_bad_hook_is_not_used_at_all(install: Install, tmp_path: Path) -> None:
    code = backend("redis") + "\n    @hookimpl\n    def cronstable_check_config(cfg):\n        raise RuntimeError\n"
    install("acme-redis", code)
    plugins = load()
    assert "cronstable_check_config" in error(plugins, "acme-redis")
    assert not plugins.election_backends
    assert list(plugins.check_config({})) == []


def test_a_failure_half_way_through_a_hook_takes_back_what_it_yielded(install: Install) -> None:
    install("acme-redis", backend("redis") + "\n    @hookimpl\n    def cronstable_services():\n        1 / 0\n")
    plugins = load()
    assert error(plugins, "acme-redis") == "ZeroDivisionError: division by zero"
    assert health(plugins, "acme-redis").provides == ("election backend:redis",)
    assert not plugins.election_backends


def test_a_hook_may_return_a_list_or_nothing(install: Install) -> None:
    code = """
        from cronstable.api import *

        @hookimpl
        def cronstable_cli_commands():
            return [CliCommand(name="drain", help="Drain.", target="acme:drain")]

        @hookimpl
        def cronstable_services():
            return None

        @hookimpl
        def cronstable_check_config(config):
            return None
    """
    install("acme-list", code)
    plugins = load()
    assert health(plugins, "acme-list").ok
    assert list(plugins.cli_commands) == ["drain"]
    assert list(plugins.check_config({})) == []


def test_two_entry_points_to_one_module_are_refused_by_name(install: Install) -> None:
    install("acme-redis", backend("redis"), name="first")
    install("acme-again", "VALUE = 1", name="second", target="acme_redis")
    plugins = load()
    assert health(plugins, "first").ok
    assert "already loaded as acme-redis:first" in error(plugins, "second")


@pytest.mark.parametrize("hook", ["cronstable_services(settings)", "cronstable_elections()"], ids=["pluggy", "ours"])
def test_a_plugin_that_failed_validation_does_not_stay_registered(install: Install, hook: str) -> None:
    install("acme-bad", f"{HEADER}@hookimpl\ndef {hook}: ...", name="first")
    install("acme-again", "VALUE = 1", name="second", target="acme_bad")
    plugins = load()
    assert error(plugins, "second") == error(plugins, "first").replace("acme-bad:first", "acme-again:second")


@pytest.mark.parametrize("between", [(), ("acme-middle",)], ids=["adjacent", "apart"])
def test_two_third_parties_of_one_backend_are_both_refused(install: Install, between: tuple[str, ...]) -> None:
    install("acme-a", backend("redis"), version="1.0")
    for name in between:
        install(name, backend("other"))
    install("acme-z", backend("redis"), version="2.0")
    plugins = load()
    for name in ("acme-a", "acme-z"):
        assert "election backend 'redis' is provided by acme-a (acme-a 1.0) and acme-z (acme-z 2.0)" in error(
            plugins, name
        )
    assert list(plugins.election_backends) == ["other" for _ in between]


def test_all_of_three_providers_are_named(install: Install) -> None:
    for name in ("acme-a", "acme-b", "acme-c"):
        install(name, backend("redis"))
    assert "acme-a (acme-a 1.0), acme-b (acme-b 1.0) and acme-c (acme-c 1.0)" in error(load(), "acme-b")


def test_one_plugin_that_provides_a_name_twice_is_refused(install: Install) -> None:
    descriptor = "NotifierBackend(name='a', factory='b:c')"
    install("acme-twice", HEADER + f"@hookimpl\ndef cronstable_notifiers():\n    return [{descriptor}, {descriptor}]")
    assert "notifier 'a' is provided by acme-twice (acme-twice 1.0) twice" in error(load(), "acme-twice")


def test_two_owners_of_one_key_are_both_refused(install: Install) -> None:
    for name in ("acme-a", "acme-b"):
        fragment = f"ConfigFragment(id='urn:{name}', schemas={{'jobs[].team': {{'type': 'boolean'}}}})"
        install(name, HEADER + f"@hookimpl\ndef cronstable_config_fragments():\n    yield {fragment}")
    plugins = load()
    assert "configuration key 'jobs[].team' is provided by acme-a" in error(plugins, "acme-a")
    assert plugins.fragments == ()


def test_a_third_party_that_claims_what_a_builtin_provides_leaves_the_builtin_in_place(install: Install) -> None:
    own = install("acme-own", backend("redis"), name="unlisted")
    install("acme-thief", backend("redis"), name="thief")
    plugins = load_plugins({"CRONSTABLE_DISABLED_PLUGINS": "unlisted"}, builtins=(own,))
    assert plugins.election_backends["redis"].plugin == PluginInfo(own, "cronstable", "2.0.0", own, builtin=True)
    assert f"is provided by {own} (cronstable 2.0.0) and thief (acme-thief 1.0)" in error(plugins, "thief")


def test_builtins_are_read_before_any_third_party_is_imported(install: Install) -> None:
    own = install("acme-own", backend("redis"), name="unlisted")
    install("acme-late", "import sys\nassert 'acme_own' in sys.modules", name="late")
    plugins = load_plugins({"CRONSTABLE_DISABLED_PLUGINS": "unlisted"}, builtins=(own,))
    assert error(plugins, "late").startswith("it implements no hook")
    assert plugins.health[0].plugin.builtin


def test_a_builtin_whose_dependency_is_missing_is_reported_like_any_other(install: Install) -> None:
    plugins = load_plugins({}, builtins=("acme_gone",))
    assert plugins.health[0].error == "ModuleNotFoundError: No module named 'acme_gone'"


def test_disabled_plugins_are_listed_and_provide_nothing(install: Install) -> None:
    install("acme-redis", "raise RuntimeError('imported')")
    plugins = load({"CRONSTABLE_DISABLED_PLUGINS": " acme-redis , ,ghost"})
    one = health(plugins, "acme-redis")
    assert (one.ok, one.disabled, one.error) == (False, True, None)
    assert "CRONSTABLE_DISABLED_PLUGINS names 'ghost', which no installed plugin is called" in plugins.warnings()


def test_the_trace_shows_what_was_found_imported_and_given(install: Install) -> None:
    install("acme-redis", backend("redis"))
    install("acme-bad", "import acme_absent", name="bad")
    install("acme-off", "VALUE = 1", name="off")
    out, readings = io.StringIO(), iter(range(1000))
    load(
        {"CRONSTABLE_TRACE_PLUGINS": "1", "CRONSTABLE_DISABLED_PLUGINS": "off"},
        timer=lambda: next(readings) / 1000,
        trace_to=out,
    )
    lines = out.getvalue().splitlines()
    assert "cronstable plugins: acme-redis (acme-redis 1.0): imported acme_redis in 1.0 ms" in lines
    assert "cronstable plugins:   cronstable_election_backends: election backend:redis" in lines
    assert "cronstable plugins: bad (acme-bad 1.0): not imported" in lines
    assert "cronstable plugins:   cannot be used: ModuleNotFoundError: No module named 'acme_absent'" in lines
    assert "cronstable plugins: off (acme-off 1.0): disabled by CRONSTABLE_DISABLED_PLUGINS" in lines


@pytest.mark.parametrize("value", [None, "", "0"])
def test_nothing_is_printed_without_the_trace(
    install: Install, capsys: pytest.CaptureFixture[str], value: str | None
) -> None:
    install("acme-bad", "import acme_absent")
    load({} if value is None else {"CRONSTABLE_TRACE_PLUGINS": value})
    assert capsys.readouterr() == ("", "")


def check_plugin(body: str) -> str:
    return HEADER + f"@hookimpl\ndef cronstable_check_config(config):\n    {body}"


def test_problems_come_with_the_plugin_that_found_them(install: Install) -> None:
    install("acme-rule", check_plugin("yield Problem(path=('jobs', 0), message=config['why'])"))
    ((plugin, problem),) = load().check_config({"why": "no team"})
    assert plugin.distribution == "acme-rule"
    assert problem == Problem(path=("jobs", 0), message="no team")


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("yield config['absent']", "KeyError: 'absent'"),
        ("raise SystemExit('bye')", "SystemExit: bye"),
        ("yield 'a text'", "it yielded a str, not a Problem"),
        ("return 5", "a hook returned a int"),
    ],
)
def test_a_check_that_fails_is_a_problem_that_names_its_plugin(install: Install, body: str, cause: str) -> None:
    install("acme-rule", check_plugin(body))
    install("acme-zeta", check_plugin("yield Problem(path=(), message='still asked')"))
    (_, failed), (_, asked) = load().check_config({})
    assert failed.message.startswith("the check of plugin acme-rule (acme-rule 1.0) failed: ")
    assert cause in failed.message
    assert failed.hint is not None
    assert "CRONSTABLE_DISABLED_PLUGINS=acme-rule" in failed.hint
    assert asked.message == "still asked"


def test_a_missing_backend_is_explained_by_the_broken_plugin_that_yielded_it(install: Install) -> None:
    install("acme-redis", backend("redis") + "\n    @hookimpl\n    def cronstable_services():\n        1 / 0\n")
    assert load().why_missing("election backend", "redis") == (
        "plugin acme-redis (acme-redis 1.0) provides it but cannot be used: ZeroDivisionError: division by zero"
    )


def test_a_missing_backend_is_explained_by_a_broken_plugin_that_never_spoke(install: Install) -> None:
    install("acme-redis", "import acme_absent")
    assert load().why_missing("election backend", "redis") == (
        "it may come from a plugin that cannot be used: "
        "acme-redis (acme-redis 1.0): ModuleNotFoundError: No module named 'acme_absent'"
    )


@pytest.fixture
def known_kv(monkeypatch: pytest.MonkeyPatch) -> None:
    """One entry in the hint table that no environment of a developer has installed."""
    monkeypatch.setattr(hints, "PROVIDERS", {("election backend", "kv"): "cronstable-kv"})
    monkeypatch.setattr(hints, "PATHS", {"cluster.kvKey": "cronstable-kv"})


@pytest.mark.usefixtures("known_kv")
def test_a_known_backend_is_explained_by_its_broken_distribution(install: Install) -> None:
    install("cronstable-kv", "import acme_absent", name="kv", version="2.3")
    assert load().why_missing("election backend", "kv") == (
        "plugin kv (cronstable-kv 2.3) provides it but cannot be used: "
        "ModuleNotFoundError: No module named 'acme_absent'"
    )


@pytest.mark.usefixtures("known_kv")
def test_a_known_backend_that_is_not_installed_is_explained_by_an_install_line(install: Install) -> None:
    install("acme-redis", "import acme_absent")
    assert load().why_missing("election backend", "kv") == (
        "cronstable-kv provides it; install it with: pip install cronstable cronstable-kv"
    )


@pytest.mark.usefixtures("known_kv")
def test_a_known_key_that_is_not_installed_is_explained_by_an_install_line() -> None:
    explained = load().why_missing(KEY, "cluster.kvKey")
    assert explained == "cronstable-kv provides it; install it with: pip install cronstable cronstable-kv"


@pytest.mark.usefixtures("known_kv")
def test_a_known_backend_that_is_disabled_is_explained_by_the_variable(install: Install) -> None:
    install("cronstable-kv", "VALUE = 1", name="kv")
    assert load({"CRONSTABLE_DISABLED_PLUGINS": "kv"}).why_missing("election backend", "kv") == (
        "plugin kv (cronstable-kv 1.0) provides it but is disabled by CRONSTABLE_DISABLED_PLUGINS"
    )


def test_an_unknown_backend_may_come_from_a_disabled_plugin(install: Install) -> None:
    install("acme-redis", "VALUE = 1")
    install("acme-b", "VALUE = 1")
    assert load({"CRONSTABLE_DISABLED_PLUGINS": "acme-redis,acme-b"}).why_missing("election backend", "redis") == (
        "it may come from a plugin that CRONSTABLE_DISABLED_PLUGINS disables: "
        "acme-b (acme-b 1.0) and acme-redis (acme-redis 1.0)"
    )


def test_nothing_is_made_up_about_an_unknown_backend() -> None:
    nobody = Plugins({}, {}, {}, {}, {}, (), ())
    assert nobody.why_missing("election backend", "redis") is None


def provided_by(module: str) -> Provided[str]:
    return Provided("redis", PluginInfo("redis", "acme-redis", "1.0", module, builtin=False))


def test_a_factory_is_loaded_by_its_name(install: Install) -> None:
    module = install("acme-redis", "class A:\n    @staticmethod\n    def make(context, host):\n        return 'made'")
    assert load_factory(f"{module}:A.make", provided_by(module))(None, None) == "made"


@pytest.mark.parametrize(
    ("code", "target", "cause"),
    [
        ("import acme_absent", "acme_redis:make", "acme_redis:make did not load: ModuleNotFoundError"),
        ("raise SystemExit(1)", "acme_redis:make", "acme_redis:make did not load: SystemExit: 1"),
        ("VALUE = 1", "acme_redis:make", "acme_redis:make did not load: AttributeError"),
        ("make = 1", "acme_redis:make", "acme_redis:make is not callable"),
    ],
)
def test_a_factory_that_does_not_load_names_distribution_version_and_cause(
    install: Install, code: str, target: str, cause: str
) -> None:
    module = install("acme-redis", code)
    with pytest.raises(PluginError) as raised:
        load_factory(target, provided_by(module))
    assert str(raised.value).startswith("plugin redis (acme-redis 1.0) cannot be used: ")
    assert cause in str(raised.value)
