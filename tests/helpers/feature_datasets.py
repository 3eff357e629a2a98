"""Small features datasets for tests of training and evaluation: separable classes, any layout of
row groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from features.columns import INPUT_COLUMNS, PARTICLE_CORE, PARTICLE_KINDS, hlf_names
from features.dataset import FeatureDataset, RowGroup
from features.matrices import (
    list_columns,
    particle_features,
    particle_matrices,
    particles_from_core,
)
from features.scaling import ColumnStatistics, scaler_json
from features.schema import SPLITS, features_schema

CLASSES = ["QCD", "ttbar", "W+jets"]
CANDIDATE_KINDS = ("track", "neutral hadron", "photon")
Columns = dict[str, np.ndarray]


def write_dataset(
    folder: Path,
    *,
    rows: Mapping[str, Sequence[int]],
    seed: int = 1,
    class_weights: Sequence[float] = (1.0, 1.0, 1.0),
    separation: float = 3.0,
    max_particles: int = 12,
) -> FeatureDataset:
    """Write a dataset with these numbers of rows of the row groups of each split.

    Events have 1 to `max_particles` particles; see `random_particles`.
    """
    rng = np.random.default_rng(seed)
    particle_rng = np.random.default_rng([seed, 1])
    centres = np.random.default_rng(99).normal(0, separation, (len(CLASSES), len(hlf_names())))
    splits: dict[str, list[RowGroup]] = {}
    groups: dict[str, list[Columns]] = {}
    num_entries = 0
    for split in SPLITS:
        (folder / split).mkdir(parents=True)
        splits[split] = []
        groups[split] = []
        for index, num_rows in enumerate(rows[split]):
            columns = _random_group(rng, particle_rng, num_rows, centres, max_particles)
            columns["entry"] = np.arange(num_entries, num_entries + num_rows)
            name = f"{split}/part-{index:05d}.parquet"
            _write_group(folder / name, columns)
            num_entries += num_rows
            splits[split].append(RowGroup(name, num_rows))
            groups[split].append(columns)
    counts = {split: _class_counts(groups[split]) for split in SPLITS}
    dataset = FeatureDataset(folder, CLASSES, list(class_weights), splits, counts)
    dataset.save(columns=_scalers(groups["train"]))
    return dataset


def _class_counts(groups: Sequence[Columns]) -> list[int]:
    """Number of events of each class."""
    labels = np.concatenate([columns["label"] for columns in groups])
    return [*np.bincount(labels, minlength=len(CLASSES)).tolist()]


def _scalers(groups: Sequence[Columns]) -> dict[str, Any]:
    """The scalers of the input columns, fitted to some row groups."""
    core = np.concatenate([columns["core"] for columns in groups])
    inputs = {
        "hlf": np.concatenate([columns["hlf"] for columns in groups]),
        "particles": particle_features(particles_from_core(core.T)),
    }
    scalers = {}
    for name, rows in inputs.items():
        column = INPUT_COLUMNS[name]
        scalers[name] = scaler_json(ColumnStatistics.from_rows(rows, column.log_above), column)
    return scalers


def _random_group(
    rng: np.random.Generator,
    particle_rng: np.random.Generator,
    num_rows: int,
    centres: np.ndarray,
    max_particles: int,
) -> Columns:
    """All columns but the identity; particles draw from a generator of their own."""
    labels = rng.integers(0, len(CLASSES), num_rows)
    labels[: len(CLASSES)] = np.arange(min(num_rows, len(CLASSES)))
    lengths = particle_rng.integers(1, max_particles + 1, num_rows)
    noise = rng.normal(0, 1, (num_rows, len(hlf_names())))
    hlf = 100 + 10 * (centres[labels] + noise)
    weights = rng.uniform(0.5, 1.5, num_rows)
    return {
        "hlf": hlf.astype(np.float32),
        "core": random_core(particle_rng, labels, lengths),
        "num_particles": lengths,
        "label": labels,
        "weight": weights,
    }


def random_particles(
    rng: np.random.Generator, labels: np.ndarray, lengths: np.ndarray
) -> np.ndarray:
    """Particle lists (num_events, 801, 19), zero padded, of `random_core`."""
    core = random_core(rng, labels, lengths)
    return particle_matrices(offsets_of(lengths), particles_from_core(core.T))


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """(num_events + 1,) offsets of lists of these lengths."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def random_core(rng: np.random.Generator, labels: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """(num_particles, 11) numbers of the particles of events: a lepton, then hadrons and photons.

    The classes differ in the pT of the lepton, 30, 50 and 80 GeV with a spread of 4, and in the
    mean pT of the candidates, 1, 3 and 9 GeV. `labels`, `lengths`: (num_events,) classes, and
    numbers of particles with the lepton.
    """
    num_events = len(labels)
    longest = int(lengths.max(initial=1))
    shape = (num_events, longest)
    is_lepton = np.zeros(shape, bool)
    is_lepton[:, 0] = True
    candidate_index = rng.integers(0, len(CANDIDATE_KINDS), shape)
    mean_lepton_pt = np.array([30.0, 50.0, 80.0])[labels][:, None]
    lepton_pt = rng.normal(mean_lepton_pt, 4, shape)
    candidate_pt = rng.exponential(3.0 ** labels[:, None], shape) + 0.1
    pt = np.where(is_lepton, lepton_pt, candidate_pt)
    eta = rng.uniform(-2.5, 2.5, shape)
    phi = rng.uniform(-np.pi, np.pi, shape)
    is_track = ~is_lepton & (candidate_index == CANDIDATE_KINDS.index("track"))
    has_electron = rng.integers(0, 2, (num_events, 1)).astype(bool)

    candidate_kinds = np.array([PARTICLE_KINDS.index(name) for name in CANDIDATE_KINDS])
    electron = PARTICLE_KINDS.index("electron")
    muon = PARTICLE_KINDS.index("muon")
    lepton_kind = np.where(has_electron, electron, muon)
    kind = np.where(is_lepton, lepton_kind, candidate_kinds[candidate_index])
    values = {"kind": kind, "pt": pt, "eta": eta, "phi": phi}
    for axis in "xyz":
        values[f"vertex_{axis}"] = is_track * rng.normal(0, 5, shape)
    for species in ("charged", "photon", "neutral"):
        values[f"iso_{species}"] = rng.exponential(0.3, shape)
    is_charged = is_track | is_lepton
    values["charge"] = is_charged * rng.choice([-1.0, 1.0], shape)
    is_particle = np.arange(longest) < lengths[:, None]
    columns = [values[name][is_particle] for name in PARTICLE_CORE]
    return np.stack(columns, axis=1).astype(np.float32)


def _write_group(path: Path, columns: Columns) -> None:
    """Write the columns of a row group as the features have them."""
    num_rows = len(columns["label"])
    offsets = offsets_of(columns["num_particles"])
    high_level = dict(zip(hlf_names(), columns["hlf"].T.copy(), strict=True))
    feature_columns: dict[str, Any] = {
        **columns,
        **high_level,
        **list_columns(offsets, particles_from_core(columns["core"].T)),
        "file_uuid": ["00000000-0000-0000-0000-000000000000"] * num_rows,
        "sample": [CLASSES[label] for label in columns["label"]],
    }
    schema = features_schema()
    table = pa.table({name: feature_columns[name] for name in schema.names}).cast(schema)
    pq.write_table(table, path, row_group_size=max(1, num_rows))
