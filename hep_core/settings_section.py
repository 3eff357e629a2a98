"""Sections of the config, which refuse keys without effect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, model_validator


class Needs(NamedTuple):
    """A rule about a key that has an effect only with certain values of other keys.

    With other values of these, the key must keep its default.
    """

    key: str
    """Its name below the section that has the rule, with dots; some variants of an inner section
    may lack it."""
    needs: str
    """The values that it needs, for messages: `schedule.decay: step`."""
    acts: Callable[[Any], bool]
    """Returns whether the key has an effect in a section."""


def check_keys_have_effect(section: BaseModel, rules: Sequence[Needs]) -> None:
    """Refuse keys that differ from their default and have no effect with the other values.

    Raises:
        ValueError: There are such keys; the message names all.

    Examples:
        >>> class Lamp(BaseModel):
        ...     is_on: bool = False
        ...     colour: str = "white"
        >>> rule = Needs("colour", "is_on: true", lambda lamp: lamp.is_on)
        >>> check_keys_have_effect(Lamp(colour="red"), [rule])
        Traceback (most recent call last):
        ValueError: colour: red has no effect: it needs is_on: true. Set that, or leave colour out
    """
    problems = []
    for rule in rules:
        value, default = _value_and_default(section, rule.key)
        if value == default or rule.acts(section):
            continue
        problems.append(
            f"{rule.key}: {value_in_yaml(value)} has no effect: it needs {rule.needs}. Set that, "
            f"or leave {rule.key} out"
        )
    if problems:
        raise ValueError("; ".join(problems))


def value_in_yaml(value: Any) -> str:
    """Return a value for a message, as YAML writes it; a section as dots.

    Examples:
        >>> value_in_yaml(True), value_in_yaml(0.5)
        ('true', '0.5')
    """
    if isinstance(value, BaseModel):
        return "..."
    return str(value).lower() if isinstance(value, bool) else str(value)


def _value_and_default(section: BaseModel, dotted_key: str) -> tuple[Any, Any]:
    """The value of a key and its default, in this order.

    Both are None if the key is in an inner section that is null, or has no such key.
    """
    path, _, key = dotted_key.rpartition(".")
    inner: Any = attrgetter(path)(section) if path else section
    field = None if inner is None else type(inner).model_fields.get(key)
    if field is None:
        return None, None
    return getattr(inner, key), field.get_default(call_default_factory=True)


class SettingsSection(BaseModel):
    """A section of the config, immutable; it refuses unknown keys and keys without effect."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    #: Its keys that act only beside other keys.
    NEEDS: ClassVar[tuple[Needs, ...]] = ()

    @model_validator(mode="after")
    def _keys_have_effect(self) -> Self:
        check_keys_have_effect(self, self.NEEDS)
        return self

    @classmethod
    def variants(cls) -> list[type[BaseModel]]:
        """The classes that a value of this section may have: this one, unless a key selects one."""
        return [cls]
