"""What is set has an effect, or it is refused: keys that act only beside others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, model_validator


class Needs(NamedTuple):
    """A key that acts only beside others; `check_keys_have_effect` refuses another value than its default elsewhere."""

    key: str
    """Dotted, from the section that has the rule."""
    needs: str
    """What it acts beside, in words: `schedule.decay: step`."""
    acts: Callable[[Any], bool]
    """Whether the section has that."""


def check_keys_have_effect(section: BaseModel, rules: Sequence[Needs]) -> None:
    """Refuse keys that differ from their default and have no effect beside the others.

    Raises:
        ValueError: There are such keys; the message names all.

    Examples:
        >>> class Lamp(BaseModel):
        ...     is_on: bool = False
        ...     colour: str = "white"
        >>> check_keys_have_effect(Lamp(colour="red"), [Needs("colour", "is_on: true", lambda lamp: lamp.is_on)])
        Traceback (most recent call last):
        ValueError: colour: red has no effect: it needs is_on: true. Set that, or leave colour out
    """
    found = []
    for rule in rules:
        value, default = _value_and_default(section, rule.key)
        if value != default and not rule.acts(section):
            shown = str(value).lower() if isinstance(value, bool) else value
            shown = "..." if isinstance(value, BaseModel) else shown
            found.append(
                f"{rule.key}: {shown} has no effect: it needs {rule.needs}. Set that, or leave {rule.key} out"
            )
    if found:
        raise ValueError("; ".join(found))


def _value_and_default(section: BaseModel, key: str) -> tuple[Any, Any]:
    """The value of a dotted key and its default; None twice inside a section that is null."""
    outer, _, last = key.rpartition(".")
    inner: Any = attrgetter(outer)(section) if outer else section
    if inner is None:
        return None, None
    return getattr(inner, last), type(inner).model_fields[last].get_default(
        call_default_factory=True
    )


class SettingsSection(BaseModel):
    """A section of the config: it refuses unknown keys and keys without effect, and nobody changes it."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    #: Its keys that act only beside others.
    NEEDS: ClassVar[tuple[Needs, ...]] = ()

    @model_validator(mode="after")
    def _set_keys_have_an_effect(self) -> Self:
        check_keys_have_effect(self, self.NEEDS)
        return self
