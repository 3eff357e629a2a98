"""Features with names, to compare with numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from event_rows import Row, events_table, lepton

from features.columns import PARTICLE_FEATURE_NAMES, hlf_names
from features.kernels import FeatureBlock, build_features
from features.matrices import particle_features, particles_from_core
from features.settings import FeatureSettings

#: Isolated, far from the candidates of most events below: pT 40 at eta = phi = 0.
ELECTRON = lepton(40.0, 0.0, 0.0)


class Extracted(NamedTuple):
    """Features with names: one entry per selected event."""

    selected: list[int]
    hlf: list[dict[str, float]]
    particles: list[list[dict[str, float]]]


def particles_of(block: FeatureBlock) -> np.ndarray:
    """(num_rows, 19) features of the particles, unpadded."""
    return particle_features(particles_from_core(block.core.T))


def named(rows: np.ndarray, names: Sequence[str]) -> list[dict[str, float]]:
    """Rows as numbers by name."""
    return [dict(zip(names, row, strict=True)) for row in rows.tolist()]


def extract(*events: Row, **settings: Any) -> Extracted:
    """The features of events, with these settings."""
    block = build_features(events_table(list(events)), FeatureSettings(**settings))
    all_particles = particles_of(block)
    particles = []
    for start, stop in pairwise(block.particle_offsets):
        particles.append(named(all_particles[start:stop], PARTICLE_FEATURE_NAMES))
    return Extracted(block.selected.tolist(), named(block.hlf, hlf_names()), particles)


def hlf_of(event: Row, **settings: Any) -> dict[str, float]:
    """The high-level features of an event that is selected."""
    (hlf,) = extract(event, **settings).hlf
    return hlf


def particle_rows(event: Row, **settings: Any) -> list[dict[str, float]]:
    """The particles of an event that is selected; the lepton is first."""
    (rows,) = extract(event, **settings).particles
    return rows


def column(rows: list[dict[str, float]], name: str) -> list[float]:
    """One number of each row."""
    return [row[name] for row in rows]


def near(*values: float) -> Any:
    """These numbers, but for the rounding of float32."""
    return pytest.approx(list(values), rel=1e-6, abs=1e-6)
