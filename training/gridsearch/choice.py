"""The best setting of a search, and its use in a training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple, Self

from models.networks.network_settings import NetworkSettings
from training.errors import TrainingError
from training.settings import TrainSettings


class Choice(NamedTuple):
    """The best setting of a search."""

    hidden: list[int]
    """Widths of the hidden layers."""
    batch_size: int
    """Events per step."""
    learning_rate: float
    epochs: int

    def save(self, path: Path) -> None:
        """Write the choice as JSON."""
        path.write_text(json.dumps(self._asdict(), indent=1), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote.

        Raises:
            TrainingError: The file is missing or damaged.
        """
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as cause:
            raise TrainingError(
                f"{path} holds no result of a grid search ({cause}). Run `python -m pipeline gridsearch --force`."
            ) from cause

    def applied_to(self, model: NetworkSettings, train: TrainSettings) -> tuple[NetworkSettings, TrainSettings]:
        """Settings of network and training with the best values of the search; all other values stay.

        The batch of the search is the batch of one optimiser step. Workers that average their gradients share it; else
        each worker has the whole batch size.

        Examples:
            >>> from models.networks.hlf_settings import HlfSettings
            >>> best = Choice([8, 4], 64, 0.01, 20)
            >>> _, settings = best.applied_to(HlfSettings(), TrainSettings(algorithm="ar-sgd", workers=2))
            >>> settings.batch_size, settings.learning_rate, settings.effective_learning_rate
            (32, 0.01, 0.01)
        """
        sharing = train.workers if train.traits.linear_rate else 1
        changes = {
            "batch_size": max(1, self.batch_size // sharing),
            "learning_rate": self.learning_rate,
            "epochs": self.epochs,
            # The rate was searched with this batch; the linear rule would multiply it by the number of workers.
            "scale_learning_rate": False,
        }
        # Without the class of the network: a change of its code would train all other networks again.
        return model.model_copy(update={"hidden": self.hidden, "from_gridsearch": False}), train.model_copy(
            update=changes
        )
