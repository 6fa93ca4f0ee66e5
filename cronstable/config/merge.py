"""Defaults under jobs: how two mappings become one, and where a merged value came from (reference 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cronstable.config.document import Document
from cronstable.core.finding import KeyPath
from cronstable.core.job import Json
from cronstable.core.values import dataclass


def deep_merge(base: Mapping[str, Json], over: Mapping[str, Json]) -> dict[str, Json]:
    """``over`` on top of ``base``: mappings merge, lists are joined, nothing over a mapping keeps the mapping.

    ``environment`` is merged by variable, and a Sentry ``fingerprint`` replaces the other.
    """
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, dict):
            if isinstance(value, dict):
                merged[key] = deep_merge(below, value)
            elif value is not None:
                merged[key] = value
        elif isinstance(below, list) and isinstance(value, list) and key != "fingerprint":
            merged[key] = _by_variable(below, value) if key == "environment" else [*below, *value]
        else:
            merged[key] = value
    return merged


def _by_variable(below: Sequence[Json], over: Sequence[Json]) -> list[Json]:
    variables: dict[object, Json] = {}
    for entry in (*below, *over):
        variables[entry.get("key") if isinstance(entry, dict) else id(entry)] = entry
    return list(variables.values())


@dataclass(frozen=True, slots=True)
class Layer:
    """A mapping of a file that took part in a merge. ``prefix``: its path in the file."""

    document: Document
    prefix: KeyPath


def locate(layers: Sequence[Layer], path: KeyPath) -> tuple[Layer, int, int]:
    """Which layer gave the merged value at ``path``, with line and column there; ``layers`` from the top down.

    When none has all of the path (a key that is missing), the first layer in which most of it exists. An item of a
    joined list is looked for by its number, which is that of the layer only for the lowest; its line is then near.
    """
    best: tuple[int, Layer, int, int] | None = None
    for layer in layers:
        line, column, steps = layer.document.place((*layer.prefix, *path))
        reached = steps - len(layer.prefix)
        if best is None or reached > best[0]:
            best = (reached, layer, line, column)
        if reached == len(path):
            break
    assert best is not None
    return best[1:]
