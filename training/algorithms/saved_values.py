"""Values of a method in plain types and arrays, with their types, as a checkpoint holds them. No torch."""

from __future__ import annotations

import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable
from enum import Enum, Flag
from itertools import zip_longest
from typing import Any, Final

import numpy as np

from training.errors import CheckpointError

#: Types that torch reads without running code from a file.
_PLAIN: Final = (bool, int, float, str, type(None))
#: Kinds of numpy's types: truth values, integers, floating point and complex numbers.
_NUMBERS: Final = "biufc"
#: Types of numpy that torch does not have: floating point and complex numbers of more than eight bytes.
_LONG: Final = "gG"
_SEQUENCES: Final = {kind.__name__: kind for kind in (list, tuple, set, frozenset, deque)}
_DICTS: Final = {kind.__name__: kind for kind in (dict, Counter, OrderedDict, defaultdict)}
_FACTORIES: Final = {
    kind.__name__: kind for kind in (int, float, bool, str, list, set, dict, Counter, deque)
}


class ValueEncoder:
    """Makes `(kind, number, content)` of what is not plain; an object that is met again is only its number."""

    def __init__(self) -> None:
        self._met: dict[int, tuple[int, Any]] = {}
        """Number of each object by its address; the object, so that no other gets this address."""

    def encoded(self, value: Any) -> Any:
        """A copy of a value.

        Raises:
            TypeError: It is of a type that a checkpoint cannot hold.
        """
        if type(value) in _PLAIN:
            return value
        if id(value) in self._met:
            return ("again", self._met[id(value)][0], None)
        number = len(self._met)
        self._met[id(value)] = number, value
        kind, content = self._content(value)
        return (kind, number, content)

    def _content(self, value: Any) -> tuple[str, Any]:
        name = type(value).__name__
        if type(value) is _SEQUENCES.get(name):
            return name, [getattr(value, "maxlen", None), self._all_encoded(value)]
        if type(value) is _DICTS.get(name):
            keys, values = self._all_encoded(value), self._all_encoded(value.values())
            return name, [_name_of_factory(value), keys, values]
        if hasattr(value, "load_state"):
            return "state", self.encoded(value.state())
        return _leaf(value)

    def _all_encoded(self, values: Iterable[Any]) -> list[Any]:
        return [self.encoded(value) for value in values]


class ValueDecoder:
    """Makes values of what an encoder gave, in the objects that are there where these can change."""

    def __init__(self) -> None:
        self._made: dict[int, Any] = {}
        """Values by the numbers of the encoder."""
        self._taken: set[int] = set()
        """Addresses of the objects that have got their values: no second value goes there."""

    def decoded(self, encoded: Any, present: Any = None) -> Any:
        """The value.

        Args:
            encoded: What the encoder gave.
            present: The object that holds the value, if it is there and can change.

        Raises:
            CheckpointError: No object is there, and none can be made.
        """
        if not isinstance(encoded, tuple):
            return encoded
        kind, number, content = encoded
        if kind == "again":
            return self._made[number]
        if id(present) in self._taken:
            present = None
        return self._made_of(kind, number, content, present)

    def _made_of(self, kind: str, number: int, content: Any, present: Any) -> Any:
        if kind in _SEQUENCES:
            return self._sequence(_SEQUENCES[kind], number, content, present)
        if kind in _DICTS:
            return self._dict(_DICTS[kind], number, content, present)
        if kind == "array":
            value = self._array(content, present)
        elif kind == "number":
            value = content[()]
        elif kind == "enum":
            value = _member_named(*content)
        elif kind == "random":
            value = present if type(present) is random.Random else random.Random()  # noqa: S311 - no secret
            value.setstate(content)
        elif kind == "generator":
            value = _generator(content, present)
        else:
            if not hasattr(present, "load_state"):
                raise CheckpointError(
                    "the checkpoint has the state of an object with `load_state` that a new start does not make. "
                    "Make it in `__init__` or `start` of the method."
                )
            value = present
            value.load_state(self.decoded(content))
        return self._remember(number, value)

    def _remember(self, number: int, value: Any) -> Any:
        self._made[number] = value
        self._taken.add(id(value))
        return value

    def _array(self, content: Any, present: Any) -> Any:
        is_like = isinstance(present, np.ndarray) and present.dtype == content.dtype
        if is_like and present.shape == content.shape and present.flags.writeable:
            present[...] = content
            return present
        return content

    def _sequence(self, kind: type, number: int, content: Any, present: Any) -> Any:
        maxlen, items = content
        is_like = type(present) is kind and getattr(present, "maxlen", None) == maxlen
        value: Any = present if is_like else (deque(maxlen=maxlen) if kind is deque else kind())
        there = list(value) if kind in (list, tuple, deque) else []
        if kind in (tuple, frozenset):
            return self._remember(number, kind(self._all_decoded(items, there)))
        # First: it may be an item of itself.
        self._remember(number, value)
        decoded = self._all_decoded(items, there)
        value.clear()
        if kind is set:
            value.update(decoded)
        else:
            value.extend(decoded)
        return value

    def _dict(self, kind: type, number: int, content: Any, present: Any) -> Any:
        factory, encoded_keys, encoded_values = content
        value: Any = present
        if type(present) is not kind:
            value = defaultdict(_FACTORIES.get(factory)) if kind is defaultdict else kind()
        self._remember(number, value)
        keys = self._all_decoded(encoded_keys, [])
        values = self._all_decoded(encoded_values, [value.get(key) for key in keys])
        value.clear()
        for key, item in zip(keys, values, strict=True):
            value[key] = item
        return value

    def _all_decoded(self, items: list[Any], there: list[Any]) -> list[Any]:
        pairs = zip_longest(items, there[: len(items)])
        return [self.decoded(item, present) for item, present in pairs]


def _leaf(value: Any) -> tuple[str, Any]:
    """Kind and content of a value that holds no others."""
    if type(value) is np.ndarray or isinstance(value, np.generic):
        _refuse_other_numbers(value.dtype)
        return ("array" if type(value) is np.ndarray else "number"), np.array(value)
    if isinstance(value, Enum):
        return "enum", _member(value)
    if type(value) is random.Random:
        return "random", value.getstate()
    if type(value) is np.random.Generator:
        return "generator", _state_of_generator(value)
    raise TypeError(f"it has a value of the type {_full_name(type(value))}")


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _refuse_other_numbers(dtype: np.dtype[Any]) -> None:
    if dtype.kind not in _NUMBERS or dtype.char in _LONG or not dtype.isnative:
        raise TypeError(f"it has numbers of the type {dtype}, which torch cannot read")


def _name_of_factory(value: Any) -> str | None:
    """The name of what makes the missing values of a dict; None without it."""
    factory = getattr(value, "default_factory", None)
    if factory is None:
        return None
    name = getattr(factory, "__name__", "")
    if _FACTORIES.get(name) is not factory:
        raise TypeError(
            f"it has a defaultdict of {factory}; of {', '.join(_FACTORIES)} it can be made again"
        )
    return str(name)


def _member(value: Enum) -> list[Any]:
    """Module and name of an enumeration, and the name of its member; flags have their number, as they add."""
    kind = type(value)
    name = value.value if isinstance(value, Flag) else value.name
    if _enumeration(kind.__module__, kind.__qualname__) is not kind:
        raise TypeError(
            f"it has a value of {_full_name(kind)}, which is not defined at the top of a module"
        )
    return [kind.__module__, kind.__qualname__, name]


def _member_named(module: str, qualified: str, name: Any) -> Any:
    kind = _enumeration(module, qualified)
    if kind is None:
        raise CheckpointError(
            f"the checkpoint has a value of {module}.{qualified}, which is no enumeration any more"
        )
    try:
        return kind(name) if issubclass(kind, Flag) else kind[name]
    except (KeyError, ValueError) as cause:
        raise CheckpointError(
            f"the checkpoint has {module}.{qualified}.{name}, which is no member any more"
        ) from cause


def _enumeration(module: str, qualified: str) -> type[Enum] | None:
    """An enumeration of a module that is imported: a checkpoint imports nothing."""
    found: Any = sys.modules.get(module)
    for name in qualified.split("."):
        found = getattr(found, name, None)
    return found if isinstance(found, type) and issubclass(found, Enum) else None


def _state_of_generator(value: np.random.Generator) -> Any:
    state = value.bit_generator.state
    if type(value.bit_generator) is not getattr(np.random, state["bit_generator"], None):
        raise TypeError(
            f"it has random numbers of {_full_name(type(value.bit_generator))}, which is not of numpy"
        )
    return state


def _generator(state: Any, present: Any) -> np.random.Generator:
    kind = getattr(np.random, state["bit_generator"])
    is_like = isinstance(present, np.random.Generator) and isinstance(present.bit_generator, kind)
    value: np.random.Generator = present if is_like else np.random.Generator(kind())
    value.bit_generator.state = state
    return value
