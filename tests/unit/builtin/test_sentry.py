"""What goes to Sentry, and what is a mistake in its section."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cronstable.builtin import sentry
from cronstable.core.job import Json
from cronstable.plugin.errors import InvalidSettings
from cronstable.plugin.protocols import LeaderChange, Report
from cronstable.plugin.variables import template_variables
from cronstable.testing.host import FakeHost

DSN: Json = {"value": "https://sesame@sentry.example.org/1"}


def event(host: FakeHost, message: Report | LeaderChange, **section: Json) -> dict[str, object]:
    notifier = sentry.make(sentry.parse({"dsn": DSN, **section}), host)
    assert isinstance(notifier, sentry.Sentry)
    return dict(notifier.event(template_variables(message, {"HOSTNAME": "box"})))


def test_an_event_of_the_cluster_is_one_issue_per_node(fake_host: FakeHost) -> None:
    found = event(fake_host, LeaderChange("node-a", True, "node-a", 0.0, "elected at start", "host-1"))
    assert found["fingerprint"] == ["cronstable", "leader_change", "node-a"]
    assert str(found["message"]).startswith("node node-a became the leader")
    assert found["server_name"] == "host-1"


def test_templates_make_the_text_and_one_that_fails_costs_itself(
    fake_host: FakeHost, make_report: Callable[..., Report]
) -> None:
    found = event(
        fake_host,
        make_report(stderr="disk full"),
        body="{{ name }}: {{ stderr }}",
        extra={"bad": "{{ 1 // 0 }}", "good": "{{ host }}"},
    )
    assert found["message"] == "backup: disk full"
    extra = found["extra"]
    assert isinstance(extra, dict)
    assert (extra["bad"], extra["good"]) == ("", "host-1")
    assert fake_host.logged("job backup: the template `extra.bad` failed")


@pytest.mark.parametrize("dsn", [None, {}, {"value": None}])
def test_without_a_dsn_nobody_is_told(dsn: Json) -> None:
    assert sentry.parse({"dsn": dsn}) is None


def test_mistakes_are_findings_with_their_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidSettings) as raised:
        sentry.parse({"dsn": DSN, "fingerprint": ["a", "{{"], "extra": {"a.b": "{% if %}"}, "body": "{{"})
    assert [p.path for p in raised.value.problems] == [("body",), ("fingerprint", 1), ("extra", "a.b")]
    monkeypatch.setattr(sentry, "find_spec", lambda name: None)
    with pytest.raises(InvalidSettings) as raised:
        sentry.parse({"dsn": DSN})
    (problem,) = raised.value.problems
    assert problem.hint == "install it with: pip install 'cronstable[sentry]'"
    assert sentry.parse({"dsn": None}) is None, "without a DSN the SDK is not missed"


def test_settings_do_not_show_the_dsn() -> None:
    assert "sesame" not in repr(sentry.parse({"dsn": DSN}))
