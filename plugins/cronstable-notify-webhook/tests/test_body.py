"""Bodies: whatever a job prints, what is sent is the document that the template describes."""

from __future__ import annotations

import json

import pytest
from cronstable_notify_webhook.body import Body, BodyError, syntax_problem, usual
from hypothesis import given
from hypothesis import strategies as st

from cronstable.api import Json

ANY_TEXT = st.text(st.characters(codec="utf-8"))


@given(ANY_TEXT)
def test_no_output_breaks_out_of_the_string_it_is_put_into(output: str) -> None:
    body = Body('{"a": "{{ stdout }}", "b": {{ stdout | tojson }}, "c": "<{{ stdout | upper }}>"}', as_json=True)
    found = json.loads(body.render({"stdout": output}))
    assert found == {"a": output, "b": output, "c": f"<{output.upper()}>"}


@given(ANY_TEXT)
def test_the_usual_body_is_json_whatever_was_printed(output: str) -> None:
    text = usual({"subject": "job failed", "message": output}, as_json=True)
    assert json.loads(text) == {"text": f"job failed\n\n{output}".rstrip()}


@pytest.mark.parametrize(
    ("template", "document"),
    [
        ('{"code": {{ exit_code }}}', {"code": 3}),
        ('{"ok": {{ success }}}', {"ok": False}),
        ('{"env": {{ environment }}}', {"env": {"A": 'x"y'}}),
        ('{"gone": "{{ no_such_thing.at.all }}"}', {"gone": ""}),
        ('{"nothing": "{{ leader }}", "null": {{ leader | tojson }}}', {"nothing": "", "null": None}),
        ('["{% for c in stdout %}{{ c }}{% endfor %}"]', ['"\\\n']),
    ],
)
def test_values_keep_their_kind_in_json(template: str, document: object) -> None:
    variables: dict[str, Json] = {
        "exit_code": 3,
        "success": False,
        "environment": {"A": 'x"y'},
        "leader": None,
        "stdout": '"\\\n',
    }
    assert json.loads(Body(template, as_json=True).render(variables)) == document


def test_a_body_that_is_no_json_is_not_escaped() -> None:
    body = Body("{{ stdout }}|{{ gone }}|{{ leader }}\n", as_json=False)
    assert body.render({"stdout": 'a"b', "leader": None}) == 'a"b||\n'


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ('{"broken": {{ name }}}', "does not give JSON"),
        ('{"raw": "{{ name | safe }}', "does not give JSON"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ ''.__class__.__mro__[1].__subclasses__()[0] }}", "SecurityError"),
        ("{{ range(10 ** 9) | list }}", "OverflowError"),
    ],
)
def test_a_template_that_gives_nothing_to_send_says_why(template: str, why: str) -> None:
    body = Body(template, as_json=True)
    with pytest.raises(BodyError, match=why):
        body.render({"name": "job"})


def test_a_mistake_in_a_template_is_found_before_it_is_used() -> None:
    assert syntax_problem('{"a": "{{ name }}"}') is None
    assert "not valid" in (syntax_problem("{{ name") or "")
    assert "in line 2" in (syntax_problem("{\n{% if %}\n}") or "")
    assert "no_such_filter" in (syntax_problem("{{ name | no_such_filter }}") or "")
