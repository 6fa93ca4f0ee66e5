"""A YAML file as values and positions.

Scalars stay text: what ``on``, ``08:30``, ``010`` or ``1e3`` mean is for the schema to say (DESIGN 5). Positions are
integers in one array per file, in the order of the keys, so that 10,000 jobs cost a few bytes per key and no objects.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import yaml
from yaml._yaml import CParser
from yaml.reader import ReaderError

from cronstable.core.finding import Finding, KeyPath
from cronstable.core.job import Json

MAX_DEPTH: Final = 64
MAX_ALIAS_NODES: Final = 100_000
"""How many nodes aliases may add to a file in all: a few lines can otherwise unfold to gigabytes."""

_TAG: Final = "tag:yaml.org,2002:"
_COLUMN_BITS: Final = 20
_MAX_COLUMN: Final = (1 << _COLUMN_BITS) - 1


class Map(dict[str, Json]):
    """A mapping of a file; ``at`` is where the positions of its entries begin in the file's array.

    Entries must never be removed or reordered: the n-th key has the n-th position.
    """

    __slots__ = ("at",)
    at: int


class Seq(list[Json]):
    """A sequence of a file; ``at`` as in ``Map``."""

    __slots__ = ("at",)
    at: int


Node: TypeAlias = "str | Map | Seq"


@dataclass(slots=True)
class Document:
    """One parsed file. ``root`` is None when the file could not be read as YAML; then ``findings`` say why."""

    file: str
    root: Map | None = None
    positions: array[int] = field(default_factory=lambda: array("Q"))
    findings: list[Finding] = field(default_factory=list)

    def place(self, path: KeyPath) -> tuple[int, int, int]:
        """Line and column of the deepest part of ``path`` that exists, and how many steps of it do."""
        node: Json = self.root
        place = (1, 1)
        steps = 0
        for part in path:
            if isinstance(node, Map) and isinstance(part, str) and part in node:
                place = unpack(self.positions[node.at + list(node).index(part)])
                node = node[part]
            elif isinstance(node, Seq) and isinstance(part, int) and part < len(node):
                place = unpack(self.positions[node.at + part])
                node = node[part]
            else:
                break
            steps += 1
        return (*place, steps)

    def line_of(self, seq: Seq, index: int) -> int:
        """The line on which item ``index`` of ``seq`` begins."""
        return unpack(self.positions[seq.at + index])[0]

    def add(self, line: int, column: int, message: str, *, path: KeyPath = (), hint: str | None = None) -> None:
        """Note a problem of the file itself."""
        self.findings.append(Finding(self.file, line, column, path, message, hint=hint))


def pack(line: int, column: int, quoted: bool) -> int:
    """Line and column (from 0) and whether the value is text beyond doubt, as one integer."""
    return (line << _COLUMN_BITS | min(column, _MAX_COLUMN)) << 1 | quoted


def unpack(position: int) -> tuple[int, int]:
    """Line and column, from 1."""
    place = position >> 1
    return (place >> _COLUMN_BITS) + 1, (place & _MAX_COLUMN) + 1


def parse(file: str, data: bytes) -> Document:
    """Read the bytes of ``file``. Never raises: what is wrong is in ``findings``, all of it that YAML lets us see."""
    document = Document(file)
    text = _decode(document, data)
    if text is None:
        return document
    parser = CParser(text)
    try:
        document.root = _Builder(document, parser).build()
    except _Stop:
        document.root = None
    except ReaderError as error:
        before = text[: error.position]
        line = before.count("\n")
        column = len(before) - (before.rfind("\n") + 1)
        code = error.character if isinstance(error.character, int) else ord(str(error.character)[:1] or "\0")
        document.add(line + 1, column + 1, f"the control character U+{code:04X} is not allowed in YAML")
    except yaml.MarkedYAMLError as error:
        _syntax_error(document, text, error)
    finally:
        parser.dispose()
    return document


def _decode(document: Document, data: bytes) -> str | None:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        document.add(1, 1, "the file is UTF-16", hint="save it as UTF-8")
        return None
    data = data.removeprefix(b"\xef\xbb\xbf")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        line = before.count(b"\n") + 1
        column = len(before[before.rfind(b"\n") + 1 :].decode("utf-8")) + 1
        bad = data[error.start]
        document.add(line, column, f"byte 0x{bad:02X} is not UTF-8", hint="save the file as UTF-8")
        return None


def _syntax_error(document: Document, text: str, error: yaml.MarkedYAMLError) -> None:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line, mark.column) if mark else (0, 0)
    lines = text.split("\n")
    shown = lines[line] if line < len(lines) else ""
    indent = shown[: len(shown) - len(shown.lstrip())]
    if "\t" in indent or shown[column : column + 1] == "\t":
        message, hint = "YAML: a tab is not allowed for indentation", "indent with spaces"
        column = shown.index("\t")
    else:
        message, hint = f"YAML: {error.problem or 'syntax error'}", None
        if error.context and error.context_mark and error.context_mark.line != line:
            hint = f"{error.context} that begins in line {error.context_mark.line + 1}"
    document.add(line + 1, column + 1, message, hint=hint)


class _Stop(Exception):
    """The rest of the file cannot be made sense of; the finding is noted."""


class _Builder:
    """From parser events to nodes, without recursion."""

    def __init__(self, document: Document, parser: CParser) -> None:
        self._document = document
        self._positions = document.positions
        # Typed loosely: libyaml's events come one after the other as the grammar says.
        self._next: Callable[[], Any] = parser.get_event
        self._anchors: dict[str, tuple[Node, int]] = {}
        self._open_anchors: set[str] = set()
        self._budget = MAX_ALIAS_NODES
        self._keys: dict[str, str] = {}

    def build(self) -> Map:
        """The root mapping; an empty file is an empty mapping."""
        self._next()  # the start of the stream
        event = self._next()
        if isinstance(event, yaml.StreamEndEvent):
            root = Map()
            root.at = 0
            return root
        event = self._next()
        node, position = self._node(event)
        self._next()  # the end of the document
        event = self._next()
        if not isinstance(event, yaml.StreamEndEvent):
            mark = event.start_mark
            self._fail(mark, "a second YAML document begins here", "one document per file; use `include` or more files")
        if isinstance(node, str) and not position & 1 and node in ("", "~", "null"):
            node = Map()
            node.at = 0
        if not isinstance(node, Map):
            kind = "a list" if isinstance(node, Seq) else "text"
            line, column = unpack(position)
            self._document.add(line, column, f"the file holds {kind}, not a mapping of keys such as `jobs:`")
            raise _Stop
        return node

    def _fail(self, mark: yaml.Mark, message: str, hint: str | None = None) -> None:
        self._document.add(mark.line + 1, mark.column + 1, message, hint=hint)
        raise _Stop

    def _node(self, event: Any) -> tuple[Node, int]:
        """The node that ``event`` begins, read to its end."""
        if type(event) is not yaml.MappingStartEvent and type(event) is not yaml.SequenceStartEvent:
            return self._leaf(event)
        stack = [self._open(event)]
        scalar, map_end, seq_end = yaml.ScalarEvent, yaml.MappingEndEvent, yaml.SequenceEndEvent
        following = self._next
        while True:
            event = following()
            kind = type(event)
            frame = stack[-1]
            if kind is scalar and not event.tag and not event.anchor:
                if frame.key is not None:
                    # The place of an entry is that of its key: a mark saved for half of all scalars.
                    frame.take(event.value, not event.implicit[0])
                    continue
                mark = event.start_mark
                column = mark.column
                place = mark.line << _COLUMN_BITS | (column if column < _MAX_COLUMN else _MAX_COLUMN)
                frame.take(event.value, place << 1 | (not event.implicit[0]))
            elif kind is map_end or kind is seq_end:
                stack.pop()
                node = frame.close(self._positions)
                if frame.anchor:
                    self._open_anchors.discard(frame.anchor)
                    self._anchors[frame.anchor] = (node, frame.position)
                if not stack:
                    return node, frame.position
                stack[-1].take(node, frame.position)
            elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
                if len(stack) >= MAX_DEPTH:
                    self._fail(event.start_mark, f"nested more than {MAX_DEPTH} levels deep")
                stack.append(self._open(event))
            else:
                frame.take(*self._leaf(event))

    def _open(self, event: Any) -> _MapFrame | _SeqFrame:
        mark = event.start_mark
        is_map = type(event) is yaml.MappingStartEvent
        self._check_tag(event, "map" if is_map else "seq")
        frame = _MapFrame(self._document, self._keys) if is_map else _SeqFrame()
        frame.position = pack(mark.line, mark.column, True)
        frame.anchor = event.anchor
        if event.anchor:
            self._open_anchors.add(event.anchor)
        return frame

    def _leaf(self, event: Any) -> tuple[Node, int]:
        mark = event.start_mark
        if isinstance(event, yaml.AliasEvent):
            name = str(event.anchor)
            if name in self._open_anchors:
                self._fail(mark, f"`*{name}` is inside what it stands for")
            if name not in self._anchors:
                self._fail(mark, f"`*{name}` stands for nothing: no `&{name}` comes before it")
            node, position = self._anchors[name]
            quoted = bool(position & 1)
            return self._copy(node, mark), pack(mark.line, mark.column, quoted)
        tagged_text = self._check_tag(event, "str")
        position = pack(mark.line, mark.column, tagged_text or not event.implicit[0])
        if event.anchor:
            self._anchors[event.anchor] = (event.value, position)
        return event.value, position

    def _check_tag(self, event: Any, plain: str) -> bool:
        """Refuse what we do not know; True when the tag is the one that says the plain thing."""
        tag: str | None = event.tag
        if not tag or tag == "!":
            return tag == "!"
        known = ("str", "int", "float", "bool", "null") if plain == "str" else (plain,)
        if not tag.startswith(_TAG) or tag.removeprefix(_TAG) not in known:
            self._fail(event.start_mark, f"the tag {tag.replace(_TAG, '!!')} means nothing here", "leave the tag out")
        return tag == _TAG + plain

    def _copy(self, node: Node, mark: yaml.Mark) -> Node:
        """A copy of an anchored node: values are converted in place, so nothing may be shared."""
        self._budget -= 1
        if self._budget < 0:
            self._fail(mark, f"aliases unfold to more than {MAX_ALIAS_NODES} values")
        if isinstance(node, Map):
            copy = Map((key, self._copy(value, mark)) for key, value in _items(node))
            copy.at = node.at
            return copy
        if isinstance(node, Seq):
            items = Seq(self._copy(value, mark) for value in _nodes(node))
            items.at = node.at
            return items
        return node


def _items(node: Map) -> Iterator[tuple[str, Node]]:
    for key, value in node.items():
        assert isinstance(value, str | Map | Seq)
        yield key, value


def _nodes(node: Seq) -> Iterator[Node]:
    for value in node:
        assert isinstance(value, str | Map | Seq)
        yield value


class _SeqFrame:
    """A sequence being read."""

    __slots__ = ("anchor", "node", "position", "positions")

    key: Final = None

    def __init__(self) -> None:
        self.node = Seq()
        self.positions: list[int] = []
        self.position = 0
        self.anchor: str | None = None

    def take(self, value: Node, position: int) -> None:
        """The next item."""
        self.node.append(value)
        self.positions.append(position)

    def close(self, positions: array[int]) -> Seq:
        """The end: hand over the positions."""
        self.node.at = len(positions)
        positions.extend(self.positions)
        return self.node


class _MapFrame:
    """A mapping being read: keys and values come in turns. An entry's place is that of its key."""

    __slots__ = ("_document", "_key_position", "_keys", "_merges", "anchor", "key", "node", "position", "positions")

    def __init__(self, document: Document, keys: dict[str, str]) -> None:
        self.node = Map()
        self.positions: list[int] = []
        self.position = 0
        self.anchor: str | None = None
        self._document = document
        self._keys = keys
        self.key: str | None = None
        self._key_position = 0
        self._merges: list[tuple[Node, int]] = []

    def take(self, value: Node, position: int) -> None:
        """The next key, or the value of the last one (of whose ``position`` only the lowest bit counts)."""
        key = self.key
        if key is None:
            if type(value) is not str:
                line, column = unpack(position)
                self._document.add(line, column, "a key must be text, not a list or a mapping")
                raise _Stop
            self.key = self._keys.setdefault(value, value)
            self._key_position = position
            return
        self.key = None
        if key not in self.node and key != "<<":
            self.node[key] = value
            self.positions.append(self._key_position & ~1 | position & 1)
        elif key == "<<" and not self._key_position & 1:
            self._merges.append((value, self._key_position))
        elif key not in self.node:
            self.node[key] = value
            self.positions.append(self._key_position & ~1 | position & 1)
        else:
            line, column = unpack(self._key_position)
            first = unpack(self.positions[list(self.node).index(key)])[0]
            message = f"the key `{key}` is written twice, in line {first} and in line {line}"
            self._document.add(line, column, message, hint="keep one of them")

    def close(self, positions: array[int]) -> Map:
        """The end: fill in what merge keys (``<<: *base``) add, and hand over the positions."""
        for source, position in self._merges:
            for base in source if isinstance(source, Seq) else [source]:
                if not isinstance(base, Map):
                    line, column = unpack(position)
                    self._document.add(line, column, "`<<` takes a mapping or a list of mappings")
                    continue
                for i, (key, value) in enumerate(base.items()):
                    if key not in self.node:
                        self.node[key] = value
                        self.positions.append(positions[base.at + i])
        self.node.at = len(positions)
        positions.extend(self.positions)
        return self.node
