"""From bytes to the lines that are kept."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cronstable.core.runs import Line, RunKey
from cronstable.runtime.capture import LineBatch, StreamCapture, format_prefix

KEY = RunKey("r", "job", 60)


def capture(*chunks: bytes, limit: int = 100, longest: int = 1 << 24) -> tuple[list[str], StreamCapture]:
    stream = StreamCapture(limit, longest)
    lines = [line for chunk in chunks for line in stream.feed(chunk)]
    return lines + stream.finish(), stream


def test_a_line_comes_out_when_it_is_complete() -> None:
    stream = StreamCapture(10, 100)
    assert stream.feed(b"one\ntw") == ["one"]
    assert stream.feed(b"o\n") == ["two"]
    assert stream.finish() == []


def test_a_last_line_without_ending_counts_and_stays_without_ending() -> None:
    lines, stream = capture(b"x\ny")
    assert lines == ["x", "y"]
    assert stream.text() == "x\ny"


def test_a_single_line_without_ending_stays_so() -> None:
    assert capture(b"done", limit=4096)[1].text() == "done"


def test_windows_line_endings_are_stripped_wherever_chunks_end() -> None:
    assert capture(b"a\r", b"\nb\r\n", b"c\r\n")[0] == ["a", "b", "c"]


def test_a_carriage_return_inside_a_line_stays() -> None:
    assert capture(b"10%\r20%\n")[0] == ["10%\r20%"]


def test_undecodable_bytes_are_replaced() -> None:
    assert capture(b"\xff\xfe ok\n")[0] == ["\ufffd\ufffd ok"]


def test_a_character_cut_in_two_by_chunks_is_whole_again() -> None:
    assert capture(b"\xc3", b"\xa4\n")[0] == ["ä"]


def test_a_cut_character_at_a_line_end_does_not_swallow_the_ending() -> None:
    assert capture(b"\xe2\x82\nnext\n")[0] == ["\ufffd", "next"]


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (0, "[.... 6 lines discarded ...]\n"),
        (1, "[.... 5 lines discarded ...]\n6\n"),
        (2, "1\n[.... 4 lines discarded ...]\n6\n"),
        (3, "1\n[.... 3 lines discarded ...]\n5\n6\n"),
        (5, "1\n2\n[.... 1 lines discarded ...]\n4\n5\n6\n"),
        (6, "1\n2\n3\n4\n5\n6\n"),
        (7, "1\n2\n3\n4\n5\n6\n"),
    ],
)
def test_the_first_half_and_the_rest_at_the_end_are_kept(limit: int, text: str) -> None:
    _, stream = capture(b"1\n2\n3\n", b"4\n5\n", b"6\n", limit=limit)
    assert stream.text() == text
    assert stream.produced == 6


def test_a_silent_stream_keeps_nothing() -> None:
    _, stream = capture()
    assert (stream.text(), stream.produced) == ("", 0)


def test_an_empty_line_is_output() -> None:
    assert capture(b"\n")[1].produced == 1


@pytest.mark.parametrize(
    "chunks",
    [
        [b"ok\n123456\nend\n"],
        [b"ok\n12345", b"6\nend\n"],
        [b"ok\n123456789", b"123456789", b"1\nend\n"],
        [b"ok\n123456\r", b"\nend\n"],
    ],
)
def test_a_line_that_is_too_long_is_left_out_and_counted(chunks: list[bytes]) -> None:
    lines, stream = capture(*chunks, longest=5)
    assert lines == ["ok", "end"]
    assert (stream.overlong, stream.produced) == (1, 3)


@pytest.mark.parametrize("chunks", [[b"12345\r\n"], [b"12345\r", b"\n"], [b"12345", b"\r\n"], [b"12345"]])
def test_the_ending_does_not_count_for_the_length(chunks: list[bytes]) -> None:
    lines, stream = capture(*chunks, longest=5)
    assert (lines, stream.overlong) == (["12345"], 0)


def test_a_last_line_that_is_too_long_is_counted() -> None:
    lines, stream = capture(b"123456789", longest=5)
    assert (lines, stream.overlong, stream.text()) == ([], 1, "")


@given(st.lists(st.text(alphabet="abä\r\n\ufffd ", max_size=8), max_size=12), st.integers(0, 6), st.integers(1, 30))
def test_chunks_make_no_difference(parts: list[str], limit: int, cut: int) -> None:
    data = "".join(parts).encode()
    pieces = [data[i : i + cut] for i in range(0, len(data), cut)]
    whole, one = capture(data, limit=limit, longest=4)
    split, two = capture(*pieces, limit=limit, longest=4)
    assert whole == split
    assert (one.text(), one.produced, one.overlong) == (two.text(), two.produced, two.overlong)


def test_memory_is_bounded_by_what_is_kept() -> None:
    stream = StreamCapture(4096, 1 << 24)
    chunk = b"line\n" * 50_000
    tracemalloc.start()
    try:
        for _ in range(40):
            stream.feed(chunk)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert stream.produced == 2_000_000
    assert len(stream.text().splitlines()) == 4097
    assert peak < 16 * 1024 * 1024


def test_an_endless_line_is_dropped_while_it_comes() -> None:
    stream = StreamCapture(10, 1000)
    tracemalloc.start()
    try:
        for _ in range(1000):
            stream.feed(b"x" * 10_000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100_000
    assert stream.feed(b"\nafter\n") == ["after"]
    assert stream.overlong == 1


def test_the_prefix_names_job_and_stream() -> None:
    assert format_prefix("[{job_name} {stream_name}] ", "backup", "stderr") == "[backup stderr] "


@pytest.mark.parametrize("template", ["{", "{nope}", "{0}", "{job_name.nope}", "{job_name:d}"])
def test_a_prefix_that_cannot_be_formatted_is_taken_literally(template: str) -> None:
    assert format_prefix(template, "j", "stdout") == template


def test_a_batch_is_text_for_the_log_and_lines_for_readers() -> None:
    batch = LineBatch(KEY, "stdout", "> ", 5, ["a", "b"], 1.5)
    assert batch.logged() == "> a\n> b\n"
    assert list(batch.lines()) == [Line(5, "stdout", "a", 1.5), Line(6, "stdout", "b", 1.5)]
    assert list(batch.lines(1)) == [Line(6, "stdout", "b", 1.5)]
    assert list(batch.lines(9)) == list(batch.lines())
