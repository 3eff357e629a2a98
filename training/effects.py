"""What is set has an effect, or it is refused: keys that act only beside others, mechanisms that a run can reach."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, model_validator

Unit = Literal["steps", "steps of an epoch", "epochs", "workers"]
"""What a run has a number of."""


class Needs(NamedTuple):
    """A key that acts only beside others; `refuse_without_effect` refuses another value than its default elsewhere."""

    key: str
    """Dotted, from the section that has the rule."""
    needs: str
    """What it acts beside, in words: `schedule.decay: step`."""
    acts: Callable[[Any], bool]
    """Whether the section has that."""


def refuse_without_effect(section: BaseModel, rules: Sequence[Needs]) -> None:
    """Refuse keys that differ from their default and have no effect beside the others.

    Raises:
        ValueError: There are such keys; the message names all.

    Examples:
        >>> class Lamp(BaseModel):
        ...     is_on: bool = False
        ...     colour: str = "white"
        >>> refuse_without_effect(Lamp(colour="red"), [Needs("colour", "is_on: true", lambda lamp: lamp.is_on)])
        Traceback (most recent call last):
        ValueError: colour: red has no effect: it needs is_on: true. Set that, or leave colour out
    """
    found = []
    for rule in rules:
        value, default = _value_and_default(section, rule.key)
        if value != default and not rule.acts(section):
            shown = str(value).lower() if isinstance(value, bool) else value
            shown = "..." if isinstance(value, BaseModel) else shown
            found.append(f"{rule.key}: {shown} has no effect: it needs {rule.needs}. Set that, or leave {rule.key} out")
    if found:
        raise ValueError("; ".join(found))


def _value_and_default(section: BaseModel, key: str) -> tuple[Any, Any]:
    """The value of a dotted key and its default; None twice inside a section that is null."""
    outer, _, last = key.rpartition(".")
    inner: Any = attrgetter(outer)(section) if outer else section
    if inner is None:
        return None, None
    return getattr(inner, last), type(inner).model_fields[last].get_default(call_default_factory=True)


class SettingsSection(BaseModel):
    """A section of the config: it refuses unknown keys and keys without effect, and nobody changes it."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    #: Its keys that act only beside others.
    NEEDS: ClassVar[tuple[Needs, ...]] = ()

    @model_validator(mode="after")
    def _set_keys_have_an_effect(self) -> Self:
        refuse_without_effect(self, self.NEEDS)
        return self


class Mechanism(NamedTuple):
    """Something in a training that acts for the first time after some steps or epochs, or between some workers."""

    does: str
    """What it does when it acts, in words: `SlowMo makes an outer step`."""
    key: str
    """The key of `train` that says when."""
    value: float
    needs: Callable[[float], int] = math.ceil
    """The lowest number of units in a run in which it acts, for a value of the key."""
    unit: Unit = "steps"
    counter: str = ""
    """Name under which the records count how often it acted; empty for none."""

    def why_idle(self, run: Mapping[Unit, int]) -> str:
        """Why it never acts in a run with these numbers of units, and what to do; empty if it can act.

        Examples:
            >>> found = Mechanism("SlowMo makes no outer step", "slowmo.tau", 20)
            >>> found.why_idle({"steps": 20})
            ''
            >>> print(found.why_idle({"steps": 16}).partition(". ")[2])
            Lower train.slowmo.tau to at most 16, or raise train.epochs
        """
        number, needed = run[self.unit], self.needs(self.value)
        if number >= needed:
            return ""
        if self.unit == "workers":
            return (
                f"{self.does}: it needs at least {needed} workers, and train.workers is {number}. Raise that, or "
                f"leave it out"
            )
        has = f"there are {number} epoch(s)" if self.unit == "epochs" else f"a worker takes about {number} {self.unit}"
        largest = bisect_right(range(math.ceil(self.value)), number, key=self.needs) - 1
        lower = f"Lower train.{self.key} to at most {largest}" if largest > 0 else f"Leave train.{self.key} out"
        more = "raise train.epochs" if self.unit != "steps of an epoch" else "lower train.batch_size"
        return f"{self.does}: train.{self.key} is {self.value:g}, and {has}. {lower}, or {more}"


def between_workers(does: str, *, counter: str = "", at_least: int = 2) -> Mechanism:
    """What acts between a number of workers."""
    return Mechanism(does, "workers", 0, lambda _: at_least, "workers", counter)
