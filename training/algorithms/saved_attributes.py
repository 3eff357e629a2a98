"""What a checkpoint holds of a method: its attributes, so that no method can forget one. No torch."""

from __future__ import annotations

import dataclasses
import random
from collections import deque
from collections.abc import Sequence
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, ClassVar, Final

import numpy as np
from pydantic import BaseModel

from training.errors import CheckpointError

#: Types that torch reads without running code from a file.
_PLAIN: Final = (bool, int, float, str, type(None))
#: Values of these types are constants.
_CONSTANT: Final = (BaseModel, Enum, FunctionType, BuiltinFunctionType, MethodType, partial, type)
#: Kinds of numpy's types: truth values, integers, floating point and complex numbers.
_NUMBERS: Final = "biufc"


class SavedAttributes:
    """Something whose attributes are its state, but for constants and for those that it names as scratch."""

    SCRATCH: ClassVar[Sequence[str]] = ()
    """Attributes of this class that no next step depends on: connections, and arrays that a step overwrites."""

    def attributes(self) -> dict[str, Any]:
        """Copies of all attributes that the next steps may depend on: plain values, and arrays.

        Raises:
            CheckpointError: There is an attribute of which nobody knows whether it changes, and how to save it.
        """
        scratch = {name for kind in type(self).__mro__ for name in vars(kind).get("SCRATCH", ())}
        saved = {}
        for name, value in vars(self).items():
            if name in scratch or _is_constant(value):
                continue
            try:
                saved[name] = _saved(value)
            except TypeError as cause:
                raise CheckpointError(
                    f"no checkpoint can hold {type(self).__name__}.{name}: {cause}. Make it of numbers, text, arrays, "
                    f"lists, tuples and dicts; or give its class `state` and `load_state`; or name it in SCRATCH of "
                    f"{type(self).__name__}, if no next step depends on it."
                ) from cause
        return saved

    def restore_attributes(self, saved: dict[str, Any]) -> None:
        """Continue from what `attributes` gave; arrays stay where they are in memory."""
        for name, value in saved.items():
            setattr(self, name, _restored(getattr(self, name, None), value))


def _is_constant(value: Any) -> bool:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return bool(value.__dataclass_params__.frozen)  # type: ignore[attr-defined]
    return isinstance(value, _CONSTANT)


def _saved(value: Any) -> Any:
    """A copy of a value, of types that a checkpoint can hold."""
    if isinstance(value, (deque, set, frozenset)):
        return [_saved_plain(item) for item in value]
    if isinstance(value, np.random.Generator):
        return _saved_plain(value.bit_generator.state)
    if isinstance(value, random.Random):
        return value.getstate()
    if hasattr(value, "load_state"):
        return _saved_plain(value.state())
    return _saved_plain(value)


def _saved_plain(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
    if isinstance(value, np.generic) and value.dtype.kind in _NUMBERS:
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in _NUMBERS:
        return value.copy()
    if isinstance(value, dict):
        return {_saved_plain(key): _saved_plain(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_saved_plain(item) for item in value)
    raise TypeError(f"it has a value of the type {type(value).__module__}.{type(value).__qualname__}")


def _restored(present: Any, saved: Any) -> Any:
    """The saved value, in the object that holds the present one where that can change."""
    if isinstance(present, np.ndarray) and isinstance(saved, np.ndarray) and present.shape == saved.shape:
        present[...] = saved
    elif isinstance(present, np.random.Generator):
        present.bit_generator.state = saved
    elif isinstance(present, random.Random):
        present.setstate(saved)
    elif hasattr(present, "load_state"):
        present.load_state(saved)
    elif isinstance(present, (set, dict)):
        present.clear()
        present.update(saved)
    elif isinstance(present, deque):
        present.clear()
        present.extend(saved)
    elif isinstance(present, (list, tuple)) and isinstance(saved, (list, tuple)) and len(present) == len(saved):
        items = [_restored(*pair) for pair in zip(present, saved, strict=True)]
        return type(present)(items)
    elif isinstance(present, frozenset):
        return frozenset(saved)
    else:
        return saved
    return present
