"""One file against the schema: each distinct shape of job once; jsonschema decides, unless the answer is plain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cronstable.config.document import Document, Map, Seq
from cronstable.config.explain import problems
from cronstable.config.rules import Rule, Shape, Walk, convert
from cronstable.config.schema import Composed, Schema
from cronstable.core.finding import KeyPath, Problem
from cronstable.core.job import Json
from cronstable.plugin.plain import surely_valid

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError

_DEPENDENT: Final = frozenset({"required", "additionalProperties"})


@dataclass(slots=True)
class Checked:
    """What the schema says about one file. Values are converted in place.

    ``bad``: for each job with a mistake, its keys that cannot be used. ``special``: the jobs with a ``$`` or a path
    in them, which interpolation has to look at; ``special_rest``: so has the rest of the file.
    """

    problems: list[Problem] = field(default_factory=list)
    bad: dict[int, set[str]] = field(default_factory=dict)
    bad_rest: set[KeyPath] = field(default_factory=set)
    special: list[int] = field(default_factory=list)
    special_rest: bool = False


class Validator:
    """Holds the compiled schema and the shapes that jsonschema has accepted."""

    def __init__(self, composed: Composed) -> None:
        self.composed = composed
        self.schema = schema = composed.schema
        self._job_schema = schema["properties"]["jobs"]["items"]
        self.rule = Rule(schema, schema, True)
        jobs = self.rule.props["jobs"].items
        assert jobs is not None
        self.job_rule = jobs
        self._job: Draft202012Validator | None = None
        self._good: set[Shape] = set()

    def check(self, document: Document, instead: Mapping[str, Mapping[str, Json]]) -> Checked:
        """Convert and check all of a file that could be parsed.

        ``instead``: sections that the schema shall see with fewer keys; their values are converted like the others.
        """
        checked = Checked()
        root = document.root
        if root is None:
            return checked
        walk = Walk(document.positions)
        rest: dict[str, object] = {}
        for i, (key, value) in enumerate(root.items()):
            if key == "jobs" and isinstance(value, Seq):
                rest[key] = []
                self._jobs(value, Walk(document.positions), checked)
                continue
            child = self.rule.props.get(key)
            if child is not None:
                if isinstance(value, str):
                    root[key] = convert(value, bool(document.positions[root.at + i] & 1), child)
                else:
                    walk.any(value, child)
            seen = root[key]
            if key in instead and isinstance(seen, Map):
                seen = {k: seen.get(k, v) for k, v in instead[key].items()}
            rest[key] = seen
        checked.special_rest = walk.special or "include" in root
        if not surely_valid(rest, self.schema):
            for error in _authority(self.schema).iter_errors(rest):
                self._note(error, (), checked)
                checked.bad_rest.add(tuple(error.absolute_path))
        return checked

    def job_errors(self, job: object) -> Iterator[ValidationError]:
        """The verdict of jsonschema alone on one converted job."""
        if self._job is None:
            self._job = _authority(self._job_schema)
        return iter(self._job.iter_errors(job))

    def _jobs(self, jobs: Seq, walk: Walk, checked: Checked) -> None:
        rule, good = self.job_rule, self._good
        for i, job in enumerate(jobs):
            if type(job) is Map:
                walk.special = False
                shape = walk.mapping(job, rule)
                if walk.special:
                    checked.special.append(i)
                if shape in good:
                    continue
                errors = [] if surely_valid(job, self._job_schema) else list(self.job_errors(job))
                if not errors:
                    good.add(shape)
                    continue
            else:
                errors = list(self.job_errors(job))
            checked.bad[i] = _unusable(errors)
            for error in errors:
                self._note(error, ("jobs", i), checked)

    def _note(self, error: ValidationError, prefix: KeyPath, checked: Checked) -> None:
        for problem in problems(error):
            checked.problems.append(
                Problem((*prefix, *problem.path), problem.message, problem.severity, problem.allowed, problem.hint)
            )


def _authority(schema: Schema) -> Draft202012Validator:
    """jsonschema, which a daemon whose configuration is right never loads."""
    from jsonschema import Draft202012Validator

    return Draft202012Validator(schema)


def _unusable(errors: Iterable[ValidationError]) -> set[str]:
    """The keys of a job that cannot be looked at further; the others still are, so that all mistakes show at once."""
    return {str(error.absolute_path[0]) for error in errors if error.absolute_path}
