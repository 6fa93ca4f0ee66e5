"""The page and its parts as they are served: without a token, with a strict policy, and complete."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from cronstable.api import Reason
from cronstable.builtin.web.dashboard import FOLDER, KINDS, parts

pytestmark = pytest.mark.anyio


class Page(HTMLParser):
    """What a page loads, and what it carries in line."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.inline: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.loads += [
            str(found[key]) for key in ("src", "href") if found.get(key) and tag in ("script", "link", "img")
        ]
        self.inline += [name for name in found if name == "style" or name.startswith("on")]
        if tag == "style" or (tag == "script" and "src" not in found):
            self.inline.append(tag)


async def test_the_page_and_its_parts_need_no_token_and_the_api_does(serve: Any) -> None:
    async with serve(authToken={"value": "s3cret"}) as call:
        page = await call("GET", "/")
        part = await call("GET", "/ui/main.js")
        api = await call("GET", "/jobs")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert (part.status, part.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    assert api.status == 401


async def test_the_page_may_load_nothing_from_elsewhere_and_no_text_can_become_markup(serve: Any) -> None:
    async with serve() as call:
        reply = await call("GET", "/")
    policy = dict(part.split(" ", 1) for part in reply.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert policy["frame-ancestors"] == "'none'"
    assert reply.headers["x-frame-options"] == "DENY"
    assert reply.headers["referrer-policy"] == "no-referrer"


async def test_everything_the_page_names_is_there_and_relative(serve: Any) -> None:
    page = Page((FOLDER / "index.html").read_text("utf-8"))
    assert page.inline == []
    wanted = {name for name in page.loads if not name.startswith("data:")}
    assert wanted == {"ui/style.css", "ui/main.js"}
    for name in parts():
        imported = re.findall(r'from "([^"]+)"', (FOLDER / name).read_text("utf-8"))
        assert [path for path in imported if not path.startswith("./")] == []
        wanted |= {f"ui/{path.removeprefix('./')}" for path in imported}
    async with serve() as call:
        answers = {name: (await call("GET", f"/{name}")).status for name in wanted}
    assert set(answers.values()) == {200}


async def test_what_did_not_change_is_not_sent_again(serve: Any) -> None:
    async with serve() as call:
        first = await call("GET", "/ui/style.css")
        again = await call("GET", "/ui/style.css", {"If-None-Match": first.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    assert again.headers["content-security-policy"] == first.headers["content-security-policy"]


async def test_the_page_gets_the_words_for_every_reason(serve: Any) -> None:
    async with serve() as call:
        reply = await call("GET", "/ui/reasons.json")
    words = json.loads(reply.body)
    assert set(words) == {reason.value for reason in Reason}
    assert words["not-leader"] == "another node leads"


@pytest.mark.parametrize("path", ["/ui/", "/ui/nothing.js", "/ui/..%2fapp.py", "/ui/%2e%2e/app.py", "/ui/index.html"])
async def test_nothing_else_is_served(serve: Any, path: str) -> None:
    async with serve() as call:
        reply = await call("GET", path)
    assert reply.status == 404


async def test_without_web_ui_there_is_no_page(serve: Any) -> None:
    async with serve(ui=False) as call:
        answers = [(await call("GET", path)).status for path in ("/", "/ui/main.js", "/version")]
    assert answers == [404, 404, 200]


def test_no_part_makes_markup_out_of_text() -> None:
    """The browser would refuse (trusted types), and nobody should have to find out there."""
    banned = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function|srcdoc"
    )
    texts = {path.name: path.read_text("utf-8") for path in FOLDER.iterdir() if path.suffix in KINDS}
    assert {name: found for name, text in texts.items() if (found := banned.findall(text))} == {}
    assert {name for name, text in texts.items() if re.search(r"https?://(?!www\.w3\.org/)", text)} == set()
