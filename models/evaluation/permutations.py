"""Parts of the inputs that events exchange, to see how much a model needs them: features, and kinds of particles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from features.columns import HLF_NAMES, PARTICLE_FEATURE_NAMES

#: Inputs of some events by name, as a model takes them (`features.matrices.model_inputs`).
Columns = Mapping[str, NDArray[Any]]
#: The columns of some events with a part of those of as many others.
Permutation = Callable[[Columns, Columns], Columns]

#: Kinds of particles, with the flags of which one is 1.
_KINDS: Final = {
    "lepton": ("is_electron", "is_muon"),
    "tracks": ("is_charged_hadron",),
    "photons": ("is_photon",),
    "neutral hadrons": ("is_neutral_hadron",),
}


def permutations_of(inputs: Sequence[str]) -> dict[str, Permutation]:
    """What can be exchanged of a model's inputs, by name.

    Each feature of a model on high-level features alone; each kind of particle of one on particles, and all of its
    high-level features together if it takes these too.

    Args:
        inputs: Columns that the model takes.
    """
    if tuple(inputs) == ("hlf",):
        return {name: partial(_with_features, places=[place]) for place, name in enumerate(HLF_NAMES)}
    if "particles" not in inputs:
        return {}
    found: dict[str, Permutation] = {
        kind: partial(_with_kind, flags=[PARTICLE_FEATURE_NAMES.index(flag) for flag in flags])
        for kind, flags in _KINDS.items()
    }
    every = list(range(len(HLF_NAMES)))
    return found | ({"high-level features": partial(_with_features, places=every)} if "hlf" in inputs else {})


def _with_features(own: Columns, others: Columns, *, places: Sequence[int]) -> Columns:
    hlf = own["hlf"].copy()
    hlf[:, places] = others["hlf"][:, places]
    return {**own, "hlf": hlf}


def _with_kind(own: Columns, others: Columns, *, flags: Sequence[int]) -> Columns:
    """Events with the particles of one kind of other events.

    A particle keeps its relative place in its list, whatever the list is ordered by; the lepton stays first.
    """
    lists, places = [], []
    for columns, takes_kind in ((own, False), (others, True)):
        particles, lengths = columns["particles"], columns["num_particles"][:, None]
        numbers = np.arange(particles.shape[1])
        is_taken = (numbers < lengths) & (particles[..., flags].any(axis=2) == takes_kind)
        lists.append(particles)
        places.append(np.where(is_taken, numbers / np.maximum(lengths, 1), np.inf))
    place = np.concatenate(places, axis=1)
    counts = np.isfinite(place).sum(axis=1)
    order = np.argsort(place, axis=1, kind="stable")[:, : counts.max(initial=0)]
    particles = np.take_along_axis(np.concatenate(lists, axis=1), order[..., None], axis=1)
    particles[np.arange(particles.shape[1]) >= counts[:, None]] = 0.0
    return {**own, "particles": particles, "num_particles": counts.astype(own["num_particles"].dtype)}
