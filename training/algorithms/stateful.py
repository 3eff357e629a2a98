"""What a checkpoint holds of a method: its attributes, so that no method can forget one. No torch."""

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
_CONSTANT: Final = (FunctionType, BuiltinFunctionType, MethodType, partial, type)


class SavedAttributes:
    """Something whose attributes are its state, but for constants and for those that it names as scratch."""

    SCRATCH: ClassVar[Sequence[str]] = ("_constants",)
    """Attributes of this class that no next step depends on: connections, and arrays that a step overwrites."""
    _constants: Mapping[str, Any] = {}
    """Functions, classes and frozen settings as they are after the start."""

    def note_constants(self) -> None:
        """Take what cannot be saved and cannot change as made by each start alike; after the start."""
        self._constants = {name: value for name, value in vars(self).items() if _is_constant(value)}

    def attributes(self) -> dict[str, Any]:
        """Copies of all attributes that the next steps may depend on: plain values, and arrays.

        Raises:
            CheckpointError: There is an attribute of which nobody knows whether it changes, and how to save it.
        """
        scratch = {name for kind in type(self).__mro__ for name in vars(kind).get("SCRATCH", ())}
        encoder, saved = ValueEncoder(), {}
        for name, value in vars(self).items():
            if name in scratch or (_is_constant(value) and self._constants.get(name) is value):
                continue
            try:
                saved[name] = encoder.encoded(value)
            except TypeError as cause:
                since = " that no start made" if _is_constant(value) else ""
                raise CheckpointError(
                    f"no checkpoint can hold {type(self).__name__}.{name}: {cause}{since}. Make it of numbers, text, "
                    f"arrays, lists, tuples and dicts; or give its class `state` and `load_state`; or name it in "
                    f"SCRATCH of {type(self).__name__}, if no next step depends on it."
                ) from cause
        return saved

    def restore_attributes(self, saved: dict[str, Any]) -> None:
        """Continue from what `attributes` gave; arrays stay where they are in memory."""
        decoder = ValueDecoder()
        for name, value in saved.items():
            setattr(self, name, decoder.decoded(value, getattr(self, name, None)))


def _is_constant(value: Any) -> bool:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return bool(value.__dataclass_params__.frozen)  # type: ignore[attr-defined]
    if isinstance(value, BaseModel):
        return bool(value.model_config.get("frozen"))
    return isinstance(value, _CONSTANT)
