"""Where in the files of a configuration a key of a job is written."""

from __future__ import annotations

import os
from collections.abc import Iterator

from cronstable.config.document import Document, Map, Seq, parse
from cronstable.config.files import includes
from cronstable.config.merge import Layer
from cronstable.core.finding import KeyPath
from cronstable.core.job import Job, Json


class Places:
    """Looks keys up in files, each of which is read once; only for jobs that there is something to say of."""

    def __init__(self) -> None:
        self._documents: dict[str, Document] = {}
        self._jobs: dict[str, dict[int, int]] = {}

    def of(self, job: Job, path: tuple[str, ...]) -> tuple[str, int]:
        """File and line of the key at ``path``, or of what is left of it; of the job when there is nothing."""
        file, _, line = job.source.rpartition(":")
        best, place = 0, (file, int(line))
        for layer in self._layers(file, int(line)):
            found, _, steps = layer.document.place((*layer.prefix, *_numbered(layer, path)))
            if steps - len(layer.prefix) > best:
                best, place = steps - len(layer.prefix), (layer.document.file, found)
        return place

    def _layers(self, file: str, line: int) -> Iterator[Layer]:
        """The job's own mapping, and the defaults under it from the nearest on."""
        document = self._document(file)
        if file not in self._jobs:
            jobs = document.root.get("jobs") if document.root is not None else None
            found = {document.line_of(jobs, i): i for i in range(len(jobs))} if isinstance(jobs, Seq) else {}
            self._jobs[file] = found
        number = self._jobs[file].get(line)
        if number is not None:
            yield Layer(document, ("jobs", number))
            yield from self._defaults(document, {file})

    def _defaults(self, document: Document, seen: set[str]) -> Iterator[Layer]:
        if document.root is None:
            return
        yield Layer(document, ("defaults",))
        for _, path in reversed(list(includes(document.root))):
            below = os.path.join(os.path.dirname(document.file), path)
            if below not in seen:
                yield from self._defaults(self._document(below), seen | {below})

    def _document(self, file: str) -> Document:
        if file not in self._documents:
            try:
                with open(file, "rb") as opened:
                    self._documents[file] = parse(file, opened.read())
            except OSError:  # it was there a moment ago; the line of the job is known all the same
                self._documents[file] = Document(file)
        return self._documents[file]


def _numbered(layer: Layer, path: tuple[str, ...]) -> KeyPath:
    """``path`` with the numbers of list items: variables stand in a list under their names."""
    node: Json = layer.document.root
    for part in layer.prefix:
        if isinstance(node, Map) and isinstance(part, str):
            node = node.get(part)
        elif isinstance(node, list) and isinstance(part, int):
            node = node[part]
    found: list[str | int] = []
    for part in path:
        if isinstance(node, list):
            named = (i for i, item in enumerate(node) if isinstance(item, dict) and item.get("key") == part)
            number = int(part) if part.isdecimal() else next(named, len(node))
            found.append(number)
            node = node[number] if number < len(node) else None
        else:
            found.append(part)
            node = node.get(part) if isinstance(node, Map) else None
    return tuple(found)
