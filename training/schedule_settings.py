"""The schedule of the learning rate in the config, with its contradictions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from hep_core.settings_section import Needs, SettingsSection


class ScheduleSettings(SettingsSection):
    """The learning rate as a function of the samples seen by all workers, counted in epochs."""

    NEEDS: ClassVar[tuple[Needs, ...]] = (
        Needs("milestones", "decay: step", lambda schedule: schedule.decay == "step"),
        Needs("factor", "decay: step", lambda schedule: schedule.decay == "step"),
        Needs("final_fraction", "decay: cosine", lambda schedule: schedule.decay == "cosine"),
        Needs(
            "decay",
            "milestones, for example [10, 15]",
            lambda schedule: schedule.decay != "step" or schedule.milestones,
        ),
    )

    warmup_epochs: float = Field(default=0.0, ge=0)
    """Length of the linear warm-up in epochs. It starts at the rate of one worker if the rate is
    scaled, else at 0."""
    decay: Literal["constant", "step", "cosine"] = "constant"
    """Learning rate after the warm-up: `constant`, `step` (lower at `milestones`), or `cosine` to
    `final_fraction`."""
    milestones: list[float] = Field(default=[])
    """Epochs at which `decay: step` multiplies the learning rate by `factor`."""
    factor: float = Field(default=0.1, gt=0, lt=1)
    """Factor on the learning rate at every milestone of `decay: step`, between 0 and 1."""
    final_fraction: float = Field(default=0.01, gt=0, le=1)
    """Final learning rate of `decay: cosine`, at the end of the last epoch, as a fraction of the
    full rate: `learning_rate`, times the number of workers where `scale_learning_rate` acts."""

    @property
    def is_constant(self) -> bool:
        """Whether the learning rate never changes."""
        return self.decay == "constant" and not self.warmup_epochs

    @property
    def depends_on_epochs(self) -> bool:
        """Whether the learning rate within an epoch depends on the number of epochs of the run."""
        return self.decay == "cosine"

    def problems(self, epochs: int, epochs_key: str = "train.epochs") -> Iterator[str]:
        """Yield a sentence for each change of the rate that a run of this length cannot make.

        Each sentence begins with a key of the section that holds the schedule.

        Args:
            epochs: The number of epochs of the run.
            epochs_key: The key of the config that sets it.
        """
        if self.warmup_epochs > epochs:
            yield (
                f"schedule.warmup_epochs: {self.warmup_epochs:g} of {epochs} epoch(s): the "
                f"learning rate never reaches its full value. Lower it, or raise {epochs_key}"
            )
        if self.decay == "cosine" and self.warmup_epochs == epochs:
            yield (
                f"schedule.decay: cosine after {self.warmup_epochs:g} schedule.warmup_epochs of "
                f"{epochs} epoch(s): the learning rate never falls. Lower schedule.warmup_epochs, "
                f"or raise {epochs_key}"
            )
        late = [f"{epoch:g}" for epoch in self.milestones if epoch >= epochs]
        if late:
            yield (
                f"schedule.milestones: {', '.join(late)} of {epochs} epoch(s): the learning rate "
                f"does not fall there. Leave them out, or raise {epochs_key}"
            )
        early = [f"{epoch:g}" for epoch in self.milestones if self._is_before_full_rate(epoch)]
        if early:
            yield (
                f"schedule.milestones: {', '.join(early)} with {self.warmup_epochs:g} "
                f"schedule.warmup_epochs: the learning rate does not fall there, since it has not "
                f"reached its full value. Raise them, or lower train.learning_rate instead"
            )

    def _is_before_full_rate(self, epoch: float) -> bool:
        """Return whether the rate has not had its full value at an epoch."""
        return epoch <= 0 or epoch < self.warmup_epochs
