"""A model to evaluate. It has a file of its own, since `promote` needs neither measurements nor figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from models.prediction import Predictor


class Candidate(NamedTuple):
    """A model to evaluate."""

    name: str
    """Letters, digits, `-` and `_`, since it is also the name of a folder."""
    model: Predictor
    history: Sequence[Mapping[str, Any]] = ()
    """Records of its training, one per epoch; empty if there are none."""
    further: Sequence[Predictor] = ()
    """The same network from trainings with other seeds: how much they differ is measured."""
