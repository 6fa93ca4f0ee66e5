"""Our ``dataclass`` makes what the standard one makes: every statement here is tried on both."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import dataclass as standard
from dataclasses import field, replace
from typing import Any, ClassVar, Generic, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cronstable.core.values import dataclass as ours
from cronstable.core.values import replace as our_replace

T = TypeVar("T")


@ours(frozen=True, slots=True)
class Ours:
    """A value."""

    name: str
    size: int = 3
    tags: tuple[str, ...] = ()
    seen: list[int] = field(default_factory=list, compare=False, repr=False)
    late: bool = field(default=False, kw_only=True)
    LIMIT: ClassVar[int] = 9

    def __post_init__(self) -> None:
        if self.size > self.LIMIT:
            raise ValueError("too large")

    @property
    def twice(self) -> int:
        return 2 * self.size


@standard(frozen=True, slots=True)
class Standard:
    """A value."""

    name: str
    size: int = 3
    tags: tuple[str, ...] = ()
    seen: list[int] = field(default_factory=list, compare=False, repr=False)
    late: bool = field(default=False, kw_only=True)
    LIMIT: ClassVar[int] = 9

    def __post_init__(self) -> None:
        if self.size > self.LIMIT:
            raise ValueError("too large")

    @property
    def twice(self) -> int:
        return 2 * self.size


@pytest.fixture(params=[Ours, Standard])
def cls(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_arguments_defaults_and_factories(cls: Any) -> None:
    value = cls("a", 4, tags=("x",), late=True)
    assert (value.name, value.size, value.tags, value.seen, value.late, value.twice) == ("a", 4, ("x",), [], True, 8)
    assert cls("a").seen is not cls("a").seen
    assert cls("a", seen=[1]).seen == [1]


def test_wrong_arguments_are_refused_by_name(cls: Any) -> None:
    with pytest.raises(TypeError, match=rf"{cls.__name__}.__init__\(\) missing 1 required positional argument: 'name'"):
        cls()
    with pytest.raises(TypeError, match="unexpected keyword argument 'other'"):
        cls("a", other=1)
    with pytest.raises(TypeError, match="positional arguments"):
        cls("a", 1, (), [], True)
    with pytest.raises(ValueError, match="too large"):
        cls("a", 10)


def test_values_are_equal_by_what_is_compared(cls: Any) -> None:
    assert cls("a", seen=[1]) == cls("a", seen=[2])
    assert hash(cls("a", seen=[1])) == hash(cls("a", seen=[2])) == hash(("a", 3, (), False))
    assert cls("a") != cls("b")
    assert cls("a") != ("a", 3, (), False)
    assert len({cls("a"), cls("a"), cls("a", 2)}) == 2


def test_a_value_never_changes(cls: Any) -> None:
    value = cls("a")
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'name'"):
        value.name = "b"
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'name'"):
        del value.name
    with pytest.raises((dataclasses.FrozenInstanceError, TypeError)):  # a word of super() from the standard one
        value.other = 1
    assert not hasattr(value, "__dict__")


def test_it_is_shown_with_what_it_holds(cls: Any) -> None:
    assert repr(cls("a")) == f"{cls.__qualname__}(name='a', size=3, tags=(), late=False)"


def test_the_tools_of_the_standard_library_take_it(cls: Any) -> None:
    value = cls("a", 5)
    assert replace(value, size=6) == cls("a", 6)
    assert [one.name for one in dataclasses.fields(value)] == ["name", "size", "tags", "seen", "late"]
    assert dataclasses.asdict(value) == {"name": "a", "size": 5, "tags": (), "seen": [], "late": False}
    assert copy.deepcopy(value) == copy.copy(value) == value
    assert pickle.loads(pickle.dumps(value)) == value
    assert cls.__match_args__ == ("name", "size", "tags", "seen")
    assert cls.__slots__ == ("name", "size", "tags", "seen", "late")
    match value:
        case cls(name, size=5):
            assert name == "a"
        case _:
            pytest.fail("it did not match")


@pytest.mark.parametrize("decorator", [ours, standard])
def test_a_class_without_fields_one_with_a_parameter_and_one_below_another(decorator: Any) -> None:
    @decorator(frozen=True, slots=True)
    class Nothing:
        """Nothing."""

    @decorator(frozen=True, slots=True)
    class Box(Generic[T]):
        content: T

    @decorator(frozen=True, slots=True)
    class Labelled(Box[int]):
        label: str = ""

    nothing: Any = Nothing
    box: Any = Box
    labelled: Any = Labelled
    assert nothing() == nothing()
    assert hash(nothing()) == hash(())
    assert box(1) == box(1)
    assert hash(box(1)) == hash((1,))
    assert repr(labelled(1, "x")).endswith("Labelled(content=1, label='x')")
    assert labelled(1) != box(1)
    assert labelled.__slots__ == ("label",)


@pytest.mark.parametrize("decorator", [ours, standard])
def test_what_a_class_says_itself_stays(decorator: Any) -> None:
    @decorator(frozen=True, slots=True)
    class Quiet:
        secret: str

        def __repr__(self) -> str:
            return "Quiet(...)"

        def __hash__(self) -> int:
            return 7

    quiet: Any = Quiet
    assert repr(quiet("x")) == "Quiet(...)"
    assert hash(quiet("x")) == 7
    assert quiet("x") == quiet("x")


@pytest.mark.parametrize("decorator", [ours, standard])
def test_fields_by_name_only_and_fields_that_nobody_gives(decorator: Any) -> None:
    @decorator(frozen=True, slots=True, kw_only=True)
    class Named:
        first: int
        counted: list[int] = field(default_factory=lambda: [1], init=False)
        fixed: int = field(default=2, init=False)

    named: Any = Named
    value = named(first=1)
    assert (value.first, value.counted, value.fixed) == (1, [1], 2)
    with pytest.raises(TypeError):
        named(1)


def test_only_frozen_values_with_slots_are_made() -> None:
    with pytest.raises(TypeError, match="Loose: only frozen values with slots"):

        @ours(frozen=False, slots=True)
        class Loose:
            a: int


# -- replace ----------------------------------------------------------------------------------------------------------

CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "name": st.text(max_size=5),
        "size": st.integers(0, 12),
        "tags": st.lists(st.text(max_size=2), max_size=2).map(tuple),
        "seen": st.lists(st.integers(), max_size=2),
        "late": st.booleans(),
    },
)


@given(CHANGES, CHANGES)
def test_replace_does_what_the_standard_one_does(first: dict[str, Any], then: dict[str, Any]) -> None:
    first = {"name": "job", **first, "size": min(9, first.get("size", 3))}
    mine, standard_one = Ours(**first), Standard(**first)
    try:
        wanted: Any = replace(standard_one, **then)
    except ValueError as error:
        with pytest.raises(ValueError, match=str(error)):
            our_replace(mine, **then)
        return
    got = our_replace(mine, **then)
    assert type(got) is Ours
    assert dataclasses.astuple(got) == dataclasses.astuple(wanted)
    assert got.seen is then.get("seen", mine.seen)
    assert mine == Ours(**first)


def test_replace_refuses_what_is_no_field() -> None:
    value: Any = Ours("job")
    with pytest.raises(TypeError, match="Ours has no field 'colour'"):
        our_replace(value, colour="red")
    with pytest.raises(TypeError):
        replace(value, colour="red")
    with pytest.raises(TypeError, match="no field 'twice'"):
        our_replace(value, twice=2)
