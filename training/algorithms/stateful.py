"""The state of a method in a checkpoint: its attributes, so that no method can forget one.

It imports no torch, since the config reads the settings of the methods.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, ClassVar, Final

from pydantic import BaseModel

from training.algorithms.saved_values import ValueDecoder, ValueEncoder
from training.errors import CheckpointError

#: Values of these types never change in place.
_CONSTANT_TYPES: Final = (FunctionType, BuiltinFunctionType, MethodType, partial, type)


class Stateful:
    """An object whose attributes are its state, but for constants and scratch attributes.

    A constant is a function, a class or a frozen object. Every start makes the same ones, so a
    checkpoint leaves them out.
    """

    SCRATCH: ClassVar[Sequence[str]] = ("_constants",)
    """Attributes of this class on which no next step depends.

    These are connections, and arrays that each step overwrites.
    """
    _constants: Mapping[str, Any] = {}
    """Functions, classes and frozen settings after the start, by the names of their attributes."""

    def note_constants(self) -> None:
        """Remember the constants after the start; every start makes the same ones."""
        self._constants = {name: value for name, value in vars(self).items() if _is_constant(value)}

    def state_dict(self) -> dict[str, Any]:
        """Return copies of the attributes on which steps may depend, as plain values and arrays.

        It leaves out the attributes in `SCRATCH`, and constants that have not been replaced since
        `note_constants`.

        Raises:
            CheckpointError: No checkpoint can hold an attribute.
        """
        scratch = self._scratch_names()
        # One encoder for all attributes, so that objects that two of them share stay shared.
        encoder = ValueEncoder()
        encoded = {}
        for name, value in vars(self).items():
            is_constant = _is_constant(value)
            is_unchanged = is_constant and self._constants.get(name) is value
            if name in scratch or is_unchanged:
                continue
            try:
                encoded[name] = encoder.encode(value)
            except TypeError as cause:
                origin = " that no start made" if is_constant else ""
                class_name = type(self).__name__
                raise CheckpointError(
                    f"no checkpoint can hold {class_name}.{name}: {cause}{origin}. Make it of "
                    f"numbers, text, arrays, lists, tuples and dicts; or give its class `state` "
                    f"and `load_state`; or name it in SCRATCH of {class_name}, if no next step "
                    f"depends on it."
                ) from cause
        return encoded

    def load_state_dict(self, encoded: dict[str, Any]) -> None:
        """Set the attributes to those of a result of `state_dict`.

        Arrays are overwritten in place, since other objects may refer to them.
        """
        decoder = ValueDecoder()
        for name, value in encoded.items():
            present = getattr(self, name, None)
            setattr(self, name, decoder.decode(value, present))

    def _scratch_names(self) -> set[str]:
        """Return the names in `SCRATCH` of this class and of all its bases."""
        names: set[str] = set()
        # Only `vars` gives the SCRATCH of each class: an attribute lookup finds the nearest one.
        for ancestor in type(self).__mro__:
            names.update(vars(ancestor).get("SCRATCH", ()))
        return names


def _is_constant(value: Any) -> bool:
    """Return whether a value cannot change: a function, a class, or a frozen object."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return bool(value.__dataclass_params__.frozen)  # type: ignore[attr-defined]
    if isinstance(value, BaseModel):
        return bool(value.model_config.get("frozen"))
    return isinstance(value, _CONSTANT_TYPES)
