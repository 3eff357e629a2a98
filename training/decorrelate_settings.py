"""Settings of the term of the loss that decorrelates the signal's score from columns. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from hep_core.settings_section import SettingsSection


class DecorrelateSettings(SettingsSection):
    """A score of the signal that does not depend on some columns within some classes (DisCo)."""

    # `from` is a keyword of Python, so this key cannot be declared like the others.
    __annotations__["from"] = Annotated[
        list[str],
        Field(
            min_length=1,
            description="Columns of which the signal's score shall be independent: high-level "
            "features, `num_particles`, or branches of `ingest.pass_through`, such as a mass.",
        ),
    ]
    strength: float = Field(gt=0)
    """Factor of the squared distance correlations in the loss, above 0. The cross-entropy has the
    factor 1."""
    classes: list[str] = Field(min_length=1)
    """Classes within which the score shall be independent, each for itself, such as a background.
    At most 1,024 events of each count in a batch, since the time grows with their square."""
    signal: str | Annotated[list[str], Field(min_length=1)] | None = None
    """Signal classes of the score, as in `evaluate.signal`; null for those of the evaluation."""

    @property
    def columns(self) -> list[str]:
        """The columns of the key `from`."""
        columns: list[str] = getattr(self, "from")
        return columns

    @property
    def signals(self) -> list[str]:
        """The classes that `signal` names, as a list; empty for null."""
        return [self.signal] if isinstance(self.signal, str) else list(self.signal or [])

    def with_signals(self, signals: Sequence[str]) -> Self:
        """Return these settings with the signal of the evaluation, unless they name their own."""
        if self.signal is not None:
            return self
        update: dict[str, Any] = {"signal": list(signals)}
        return self.model_copy(update=update)

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        """Refuse a name that is given twice, which would count twice."""
        for key, names in (("from", self.columns), ("classes", self.classes)):
            repeated = [name for name in dict.fromkeys(names) if names.count(name) > 1]
            if repeated:
                raise ValueError(f"{key}: {', '.join(repeated)} is given twice; give it once")
        return self
