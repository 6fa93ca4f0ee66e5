"""YAML as values and positions."""

from __future__ import annotations

import pytest

from cronstable.config.document import MAX_DEPTH, Document, Map, parse


def _findings(document: Document) -> list[tuple[int, int, str]]:
    return [(f.line, f.column, f.message) for f in document.findings]


def test_scalars_stay_text_and_keep_their_place() -> None:
    document = parse("f", b"a: on\nb:\n  - 010\n  - c: 1e3\n")
    assert document.root == {"a": "on", "b": ["010", {"c": "1e3"}]}
    assert document.findings == []
    assert document.place(("a",)) == (1, 1, 1)
    assert document.place(("b", 0)) == (3, 5, 2)
    assert document.place(("b", 1, "c")) == (4, 5, 3)


def test_a_path_that_does_not_exist_is_placed_at_its_nearest_parent() -> None:
    document = parse("f", b"a:\n  b: c\n")
    assert document.place(("a", "missing", 3)) == (1, 1, 1)


def test_an_empty_file_is_an_empty_mapping() -> None:
    for text in (b"", b"# nothing\n", b"---\n", b"~\n", b"\xef\xbb\xbf"):
        document = parse("f", text)
        assert document.root == {}, text
        assert document.findings == []


def test_a_key_that_is_written_twice_names_both_lines() -> None:
    document = parse("f", b"a: 1\nb: 2\na: 3\n")
    assert _findings(document) == [(3, 1, "the key `a` is written twice, in line 1 and in line 3")]
    assert document.root == {"a": "1", "b": "2"}


def test_every_duplicate_of_a_file_is_found() -> None:
    document = parse("f", b"a: {x: 1, x: 2}\nb: {y: 1, y: 2}\n")
    assert [line for line, _, _ in _findings(document)] == [1, 2]


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        (b"jobs:\n\t- name: a\n", 2, "tab"),
        (b"a:\n  b: 1\n\tc: 2\n", 3, "tab"),
        (b"- a\n", 1, "a list, not a mapping"),
        (b"just text\n", 1, "text, not a mapping"),
        (b"a: [1, 2\n", 2, "YAML: did not find expected"),
        (b'a: "b\n', 2, "YAML: found unexpected end of stream"),
        (b"a: b: c\n", 1, "YAML: mapping values are not allowed"),
        (b"a: 1\n---\nb: 2\n", 2, "second YAML document"),
        (b"a: \xff\n", 1, "byte 0xFF is not UTF-8"),
        ("a: b\n".encode("utf-16"), 1, "UTF-16"),
        (b"a: 1\nb: \x01\n", 2, "control character U+0001"),
        (b"a: *nothing\n", 1, "stands for nothing"),
        (b"a: &x [*x]\n", 1, "inside what it stands for"),
        (b"a: !!python/object:os.system x\n", 1, "means nothing here"),
        (b"? [a, b]\n: c\n", 1, "a key must be text"),
        (b"a: " + b"[" * (MAX_DEPTH + 1), 1, "levels deep"),
        (b"a: 1\n<<: text\n", 2, "`<<` takes a mapping"),
    ],
)
def test_what_is_not_usable_yaml_is_said_with_its_line(text: bytes, line: int, says: str) -> None:
    document = parse("f", text)
    assert [found[0] for found in _findings(document)] == [line]
    assert says in document.findings[0].message
    assert document.findings[0].column >= 1


def test_an_alias_is_a_copy_at_its_own_place() -> None:
    document = parse("f", b"a: &base {x: 'on'}\nb: *base\n")
    assert document.root is not None
    a, b = document.root["a"], document.root["b"]
    assert a == b == {"x": "on"}
    assert a is not b
    assert isinstance(a, Map)
    assert document.place(("b",)) == (2, 1, 1)
    assert document.place(("b", "x")) == (1, 11, 2)


def test_merge_keys_fill_in_what_is_not_written() -> None:
    document = parse("f", b"base: &b {x: 1, y: 2}\nmore: &m {z: 3}\njob:\n  <<: [*b, *m]\n  y: 9\n")
    assert document.root is not None
    assert document.root["job"] == {"y": "9", "x": "1", "z": "3"}
    assert document.place(("job", "x"))[0] == 1
    assert document.place(("job", "z"))[0] == 2


def test_aliases_that_unfold_without_end_are_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 8)]
    document = parse("f", "\n".join(lines).encode())
    assert document.root is None
    assert "aliases unfold to more than" in document.findings[0].message
