"""Templates of reports: sandboxed, forgiving about variables, never the reason that nobody is told."""

from __future__ import annotations

import pytest

from cronstable.builtin.templating import Templates, syntax_problems
from cronstable.core.job import Json
from cronstable.testing.host import FakeHost

VARIABLES: dict[str, Json] = {"name": "backup", "schedule": "@daily", "stdout": "<b>&", "leader": None}


def render(text: str, host: FakeHost, *, html: bool = False) -> str:
    return Templates({"body": text}, html=html).render("body", VARIABLES, host, lambda: "plain")


def test_variables_that_there_are_not_become_nothing(fake_host: FakeHost) -> None:
    assert render("{{ name }}/{{ nope }}/{{ nope.deeper.still }}/{{ leader }}\n", fake_host) == "backup///\n"
    assert fake_host.log_lines == []


def test_only_html_is_escaped(fake_host: FakeHost) -> None:
    assert render("{{ stdout }}", fake_host) == "<b>&"
    assert render("<i>{{ stdout }}</i>", fake_host, html=True) == "<i>&lt;b&gt;&amp;</i>"


@pytest.mark.parametrize("template", ["{{ 1 // 0 }}", "{{ name + 1 }}", "{% include 'x' %}", "{{ range(10**9)|list }}"])
def test_a_template_that_fails_is_logged_by_job_and_key_and_plain_text_taken(
    template: str, fake_host: FakeHost
) -> None:
    assert render(template, fake_host) == "plain"
    assert fake_host.logged("job backup: the template `body` failed, plain text is sent instead")


@pytest.mark.parametrize("template", ["{{ ''.__class__.__mro__ }}", "{{ name.__init__.__globals__ }}"])
def test_the_sandbox_gives_nothing_away(template: str, fake_host: FakeHost) -> None:
    assert render(template, fake_host) in ("", "plain")


def test_values_are_data_and_no_templates(fake_host: FakeHost) -> None:
    templates = Templates({"body": "{{ stdout }}"})
    assert templates.render("body", {"stdout": "{{ 7 * 7 }}"}, fake_host, lambda: "") == "{{ 7 * 7 }}"


def test_mistakes_are_findings_with_the_key() -> None:
    section: dict[str, Json] = {"subject": "{{ name", "body": "a\n{% for %}\n", "from": "{{"}
    found = {problem.path: problem.message for problem in syntax_problems(section, ("subject", "body"))}
    assert set(found) == {("subject",), ("body",)}
    assert "in line 2" in found[("body",)]
