"""Heads of HTTP are read strictly: what is odd in an answer is an error, and an unusual question is left alone."""

from __future__ import annotations

import pytest
from cronstable_gossip.heads import MOST_HEAD, parse_answer, parse_question, write, write_answer
from hypothesis import given
from hypothesis import strategies as st


def test_an_answer_says_how_long_it_is_and_whether_the_connection_stays() -> None:
    head = parse_answer(b'HTTP/1.1 200 OK\r\nContent-Length: 12\r\nETag:  "x" ')
    assert (head.status, head.length, head.stays, head.fields["etag"]) == (200, 12, True, '"x"')
    assert parse_answer(b"HTTP/1.1 304 Not Modified\r\nContent-Length: 12").length == 0, "there is no body, ever"
    assert not parse_answer(b"HTTP/1.1 204\r\nConnection: Close").stays
    assert not parse_answer(b"HTTP/1.0 200 OK\r\nContent-Length: 0").stays
    ended = parse_answer(b"HTTP/1.1 200 OK")
    assert (ended.length, ended.stays) == (None, False)


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"HTTP/2 200 OK",
        b"HTTP/1.1 20 OK",
        b"HTTP/1.1 2000 OK",
        b"HTTP/1.1 \xb2\xb2\xb2 OK",
        b"HTTP/1.1 100 Continue",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1, 1",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000,
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\ncontent-length: 2",
        b"HTTP/1.1 200 OK\r\nContent-Length : 1",
        b"HTTP/1.1 200 OK\r\nETag: x\r\n folded: y",
        b"HTTP/1.1 200 OK\r\nnothing",
    ],
)
def test_an_odd_answer_is_an_error(head: bytes) -> None:
    with pytest.raises(ValueError, match="the "):
        parse_answer(head)


@given(st.binary(max_size=200))
def test_no_bytes_are_more_than_an_error(data: bytes) -> None:
    for head in (data, b"HTTP/1.1 200 OK\r\n" + data):
        try:
            parsed = parse_answer(head)
        except ValueError:
            continue
        assert parsed.length is None or parsed.length >= 0
    assert parse_question(data, "/peer") is None


def test_a_question_is_read_when_it_is_whole_and_nothing_follows() -> None:
    question = write("GET /peer HTTP/1.1", {"Host": "b:1", "If-None-Match": '"x"'})
    assert parse_question(question, "/peer") == {"host": "b:1", "if-none-match": '"x"'}
    for other in (
        question[:-1],
        question + b"x",
        question * 2,
        question.replace(b"GET", b"HEAD"),
        question.replace(b"HTTP/1.1", b"HTTP/1.0"),
        question.replace(b"/peer", b"/peer?x"),
        question.replace(b"b:1", b"\xff"),
        question.replace(b"b:1", b"b" * MOST_HEAD),
        question.replace(b"If-None-Match", b"Host"),
        question.replace(b"Host:", b"Host :"),
    ):
        assert parse_question(other, "/peer") is None


def test_an_answer_that_is_written_is_read_again() -> None:
    head, _, body = write_answer(200, {"ETag": '"x"'}, b"abc").partition(b"\r\n\r\n")
    assert (parse_answer(head).length, parse_answer(head).stays, body) == (3, True, b"abc")
    assert write_answer(304, {"ETag": '"x"'}, b"") == b'HTTP/1.1 304 Not Modified\r\nETag: "x"\r\n\r\n'
