"""Values of a method in plain types and arrays, with their types, as a checkpoint holds them.

It imports no torch, since the config reads the settings of the methods.
"""

from __future__ import annotations

import random
import sys
from collections import Counter, deque
from collections.abc import Iterable
from enum import Enum
from itertools import zip_longest
from typing import Any, Final

import numpy as np

from training.errors import CheckpointError

#: Types that torch reads without running code from a file.
_PLAIN_TYPES: Final = (bool, int, float, str, type(None))
#: Type codes of numpy for truth values, integers, floating point and complex numbers.
_NUMERIC_CODES: Final = "biufc"
#: Types of numpy that torch lacks: floating point and complex numbers of more than eight bytes.
_LONG_CODES: Final = "gG"
_SEQUENCES: Final = {cls.__name__: cls for cls in (list, tuple, set, frozenset, deque)}
_DICTS: Final = {cls.__name__: cls for cls in (dict, Counter)}
#: Type tag of an object that was encoded before.
_REFERENCE: Final = "again"


class ValueEncoder:
    """Encodes values as `(type tag, object id, payload)`; plain values stay as they are.

    The type tag names the type, and the object id is a number from 0. The payload holds the content
    as plain values and arrays. An object that comes again is encoded as a reference to its first
    occurrence.
    """

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, Any]] = {}
        """Id and object by address; the object is held so that no other object gets its address."""

    def encode(self, value: Any) -> Any:
        """Return an encoded copy of a value.

        Raises:
            TypeError: A checkpoint cannot hold a value of this type.
        """
        if type(value) in _PLAIN_TYPES:
            return value
        if id(value) in self._seen:
            object_id, _ = self._seen[id(value)]
            return (_REFERENCE, object_id, None)
        # The object is noted before its content, since it may contain itself.
        object_id = len(self._seen)
        self._seen[id(value)] = object_id, value
        tag, payload = self._encode_object(value)
        return (tag, object_id, payload)

    def _encode_object(self, value: Any) -> tuple[str, Any]:
        """Return type tag and payload of an object.

        Payloads are `[maxlen, items]` for sequences, `[keys, values]` for dicts and `[module, class
        name, value]` for members of enumerations. An object with `load_state` gives its `state`.
        """
        type_name = type(value).__name__
        if type(value) is _SEQUENCES.get(type_name):
            # Only a deque has a highest length.
            maxlen = getattr(value, "maxlen", None)
            return type_name, [maxlen, self._encode_all(value)]
        if type(value) is _DICTS.get(type_name):
            return type_name, [self._encode_all(value), self._encode_all(value.values())]
        if isinstance(value, Enum):
            return "enum", [*_enum_names(type(value)), self.encode(value.value)]
        if hasattr(value, "load_state"):
            return "state", self.encode(value.state())
        return _encode_leaf(value)

    def _encode_all(self, values: Iterable[Any]) -> list[Any]:
        return [self.encode(value) for value in values]


class ValueDecoder:
    """Decodes what a `ValueEncoder` gave.

    An object that is present and can change gets the content in place, so that references to it
    stay valid.
    """

    def __init__(self) -> None:
        self._decoded: dict[int, Any] = {}
        """Decoded objects by their ids."""
        self._filled: set[int] = set()
        """Addresses of objects that are decoded already: no second value may overwrite them."""

    def decode(self, encoded: Any, present: Any = None) -> Any:
        """Return the value that was encoded.

        Args:
            encoded: A result of `ValueEncoder.encode`.
            present: The object that a new start made in its place, if there is one. It is
                overwritten if its type fits.

        Raises:
            CheckpointError: The value needs an object that is not present and cannot be made.
        """
        if not isinstance(encoded, tuple):
            return encoded
        tag, object_id, payload = encoded
        if tag == _REFERENCE:
            return self._decoded[object_id]
        if id(present) in self._filled:
            present = None
        if tag in _SEQUENCES:
            return self._decode_sequence(_SEQUENCES[tag], object_id, payload, present)
        if tag in _DICTS:
            return self._decode_dict(_DICTS[tag], object_id, payload, present)
        value = self._decode_leaf(tag, payload, present)
        return self._remember(object_id, value)

    def _decode_leaf(self, tag: str, payload: Any, present: Any) -> Any:
        """Return a value that is neither a sequence nor a dict.

        All tags but those in the `match` belong to objects with `load_state`. Such an object must
        be present, since its class is not stored.
        """
        match tag:
            case "array":
                return _decode_array(payload, present)
            case "number":
                # This index turns an array without dimensions into its number.
                return payload[()]
            case "enum":
                module, class_name, member_value = payload
                return _enum_member(module, class_name, self.decode(member_value))
            case "random":
                return _decode_random(payload, present)
            case "generator":
                return _decode_generator(payload, present)
        if not hasattr(present, "load_state"):
            raise CheckpointError(
                "the checkpoint has the state of an object with `load_state` that a new start "
                "does not make. Make it in `__init__` or `start` of the method."
            )
        present.load_state(self.decode(payload))
        return present

    def _decode_sequence(self, cls: type, object_id: int, payload: Any, present: Any) -> Any:
        """Return a list, tuple, set, frozenset or deque.

        Lists, sets and deques that are present and of the same type are refilled in place. In
        ordered sequences each item is decoded into the present item at its position.
        """
        maxlen, encoded_items = payload
        is_ordered = cls in (list, tuple, deque)
        has_same_type = type(present) is cls and getattr(present, "maxlen", None) == maxlen
        present_items = list(present) if has_same_type and is_ordered else []
        # These types cannot be refilled.
        if cls in (tuple, frozenset):
            items = self._decode_all(encoded_items, present_items)
            return self._remember(object_id, cls(items))

        sequence: Any = present
        if not has_same_type:
            sequence = deque(maxlen=maxlen) if cls is deque else cls()
        # It is remembered before its items, since it may be an item of itself.
        self._remember(object_id, sequence)
        items = self._decode_all(encoded_items, present_items)
        sequence.clear()
        if cls is set:
            sequence.update(items)
        else:
            sequence.extend(items)
        return sequence

    def _decode_dict(self, cls: type, object_id: int, payload: Any, present: Any) -> Any:
        """Return a dict or Counter, refilled in place if one of its type is present.

        Each value is decoded into the present value of its key. The order of the keys is kept.
        """
        encoded_keys, encoded_values = payload
        mapping: Any = present if type(present) is cls else cls()
        self._remember(object_id, mapping)
        keys = self._decode_all(encoded_keys, [])
        present_values = [mapping.get(key) for key in keys]
        values = self._decode_all(encoded_values, present_values)
        mapping.clear()
        for key, value in zip(keys, values, strict=True):
            mapping[key] = value
        return mapping

    def _decode_all(self, encoded_items: list[Any], present_items: list[Any]) -> list[Any]:
        """Decode items, each into the present item at its position as far as there are any."""
        pairs = zip_longest(encoded_items, present_items[: len(encoded_items)])
        return [self.decode(encoded, present) for encoded, present in pairs]

    def _remember(self, object_id: int, value: Any) -> Any:
        """Note a decoded object for references to its id, and return it."""
        self._decoded[object_id] = value
        self._filled.add(id(value))
        return value


def _encode_leaf(value: Any) -> tuple[str, Any]:
    """Return type tag and payload of a value that holds no other values."""
    if type(value) is np.ndarray or isinstance(value, np.generic):
        _require_torch_dtype(value.dtype)
        tag = "array" if type(value) is np.ndarray else "number"
        return tag, np.array(value)
    if type(value) is random.Random:
        return "random", value.getstate()
    if type(value) is np.random.Generator:
        return "generator", _encode_generator(value)
    raise TypeError(f"it has a value of the type {_full_name(type(value))}")


def _full_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _require_torch_dtype(dtype: np.dtype[Any]) -> None:
    """Raise TypeError unless torch can read numbers of this type from a checkpoint.

    It can if they are truth values, integers, floating point or complex numbers of at most eight
    bytes a component, in the byte order of this machine.
    """
    is_numeric = dtype.kind in _NUMERIC_CODES and dtype.char not in _LONG_CODES
    if not (is_numeric and dtype.isnative):
        raise TypeError(f"it has numbers of the type {dtype}, which torch cannot read")


def _decode_array(array: Any, present: Any) -> Any:
    """Return the present array, overwritten, if type and shape fit; else the decoded one."""
    can_hold = (
        isinstance(present, np.ndarray)
        and present.dtype == array.dtype
        and present.shape == array.shape
        and present.flags.writeable
    )
    if not can_hold:
        return array
    present[...] = array
    return present


def _enum_names(cls: type[Enum]) -> tuple[str, str]:
    """Return module and class name of an enumeration.

    Raises:
        TypeError: A restart would not find the class by them.
    """
    if _find_enum(cls.__module__, cls.__qualname__) is not cls:
        raise TypeError(
            f"it has a value of {_full_name(cls)}, which is not defined at the top of a module"
        )
    return cls.__module__, cls.__qualname__


def _enum_member(module: str, class_name: str, member_value: Any) -> Enum:
    """Return the member of an enumeration that has a value.

    Raises:
        CheckpointError: The enumeration or the member does not exist any more.
    """
    cls = _find_enum(module, class_name)
    if cls is None:
        raise CheckpointError(
            f"the checkpoint has a value of {module}.{class_name}, which is no enumeration any more"
        )
    try:
        return cls(member_value)
    except ValueError as cause:
        raise CheckpointError(
            f"the checkpoint has {module}.{class_name}({member_value!r}), which is no member any "
            f"more"
        ) from cause


def _find_enum(module: str, class_name: str) -> type[Enum] | None:
    """Return an enumeration of an imported module, or None if there is none of this name.

    It imports nothing, since a checkpoint must not choose which code runs. `class_name`: may have
    dots, for a class inside another one.
    """
    enum_class: Any = sys.modules.get(module)
    for attribute in class_name.split("."):
        enum_class = getattr(enum_class, attribute, None)
    is_enum = isinstance(enum_class, type) and issubclass(enum_class, Enum)
    return enum_class if is_enum else None


def _decode_random(state: Any, present: Any) -> random.Random:
    """Return the present generator of `random`, or a new one, set to a state."""
    rng = present if type(present) is random.Random else random.Random()  # noqa: S311 - no secret
    rng.setstate(state)
    return rng


def _encode_generator(rng: np.random.Generator) -> Any:
    """Return the state of a generator of numpy, which names the class of its random bits.

    Raises:
        TypeError: The class is not numpy's, so that a restart could not make one.
    """
    bit_generator = rng.bit_generator
    state = bit_generator.state
    if type(bit_generator) is not getattr(np.random, state["bit_generator"], None):
        name = _full_name(type(bit_generator))
        raise TypeError(f"it has random numbers of {name}, which is not of numpy")
    return state


def _decode_generator(state: Any, present: Any) -> np.random.Generator:
    """Return the present generator of numpy if its class fits, else a new one, set to a state."""
    bit_generator = getattr(np.random, state["bit_generator"])
    has_same_type = isinstance(present, np.random.Generator) and isinstance(
        present.bit_generator, bit_generator
    )
    rng: np.random.Generator = present if has_same_type else np.random.Generator(bit_generator())
    rng.bit_generator.state = state
    return rng
