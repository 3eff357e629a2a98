"""Small features datasets for tests of training and evaluation: separable classes, any layout of row groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

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


def write_dataset(
    folder: Path,
    *,
    rows: Mapping[str, Sequence[int]],
    seed: int = 1,
    class_weights: Sequence[float] = (1.0, 1.0, 1.0),
    separation: float = 3.0,
    max_particles: int = 12,
) -> FeatureDataset:
    """Write a dataset with the given rows of each row group of each split; `entry` counts through all rows.

    Events have 1 to `max_particles` particles; see `random_particles`.
    """
    rngs = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    centres = np.random.default_rng(99).normal(0, separation, (len(CLASSES), len(hlf_names())))
    splits: dict[str, list[RowGroup]] = {}
    counts: dict[str, list[int]] = {}
    entry = 0
    train: list[dict[str, np.ndarray]] = []
    for split in SPLITS:
        (folder / split).mkdir(parents=True)
        splits[split] = []
        labels_seen = []
        for group, num_rows in enumerate(rows[split]):
            columns = _random_group(*rngs, num_rows, centres, max_particles)
            columns["entry"] = np.arange(entry, entry + num_rows)
            name = f"{split}/part-{group:05d}.parquet"
            _write_group(folder / name, columns)
            entry += num_rows
            splits[split].append(RowGroup(name, num_rows))
            labels_seen.append(columns["label"])
            if split == "train":
                train.append(columns)
        counts[split] = np.bincount(np.concatenate(labels_seen), minlength=len(CLASSES)).tolist()
    dataset = FeatureDataset(folder, CLASSES, list(class_weights), splits, counts)
    hlf, core = (np.concatenate([group[name] for group in train]) for name in ("hlf", "core"))
    dataset.save(
        columns={
            name: scaler_json(
                ColumnStatistics.from_rows(rows, INPUT_COLUMNS[name].log_above), INPUT_COLUMNS[name]
            )
            for name, rows in {
                "hlf": hlf,
                "particles": particle_features(particles_from_core(core.T)),
            }.items()
        }
    )
    return dataset


def _random_group(
    rng: np.random.Generator,
    particle_rng: np.random.Generator,
    num_rows: int,
    centres: np.ndarray,
    max_particles: int,
) -> dict[str, np.ndarray]:
    """All columns but the identity; particles draw from a generator of their own."""
    labels = rng.integers(0, len(CLASSES), num_rows)
    labels[: len(CLASSES)] = np.arange(min(num_rows, len(CLASSES)))
    lengths = particle_rng.integers(1, max_particles + 1, num_rows)
    return {
        "hlf": (
            100 + 10 * (centres[labels] + rng.normal(0, 1, (num_rows, len(hlf_names()))))
        ).astype(np.float32),
        "core": random_core(particle_rng, labels, lengths),
        "num_particles": lengths,
        "label": labels,
        "weight": rng.uniform(0.5, 1.5, num_rows),
    }


def random_particles(
    rng: np.random.Generator, labels: np.ndarray, lengths: np.ndarray
) -> np.ndarray:
    """Particle lists (num_events, 801, 19), zero padded, of `random_core`."""
    return particle_matrices(
        offsets_of(lengths), particles_from_core(random_core(rng, labels, lengths).T)
    )


def offsets_of(lengths: np.ndarray) -> np.ndarray:
    """(num_events + 1,) offsets of lists of these lengths."""
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def random_core(rng: np.random.Generator, labels: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """(num_particles, 11) numbers of the particles of events: a lepton, then hadrons and photons.

    The classes differ in the pT of the lepton, 30, 50 and 80 GeV give or take 4, and of the others, on average 1, 3 and
    9 GeV. `labels`, `lengths`: (num_events,) classes, and particles of each event, the lepton included.
    """
    shape = (len(labels), int(lengths.max(initial=1)))
    is_lepton = np.broadcast_to(np.arange(shape[1]) == 0, shape)
    kind_name = rng.integers(0, 3, shape)
    lepton_pt = rng.normal(np.array([30.0, 50.0, 80.0])[labels][:, None], 4, shape)
    pt = np.where(is_lepton, lepton_pt, rng.exponential(3.0 ** labels[:, None], shape) + 0.1)
    eta, phi = rng.uniform(-2.5, 2.5, shape), rng.uniform(-np.pi, np.pi, shape)
    is_track = ~is_lepton & (kind_name == 0)
    is_electron = is_lepton & rng.integers(0, 2, (shape[0], 1)).astype(bool)
    hadron = np.array(
        [PARTICLE_KINDS.index(name) for name in ("track", "neutral hadron", "photon")]
    )[kind_name]
    flavour = np.where(is_electron, PARTICLE_KINDS.index("electron"), PARTICLE_KINDS.index("muon"))
    values = {
        "kind": np.where(is_lepton, flavour, hadron),
        "pt": pt,
        "eta": eta,
        "phi": phi,
        **{f"vertex_{axis}": is_track * rng.normal(0, 5, shape) for axis in "xyz"},
        **{f"iso_{name}": rng.exponential(0.3, shape) for name in ("charged", "photon", "neutral")},
        "charge": (is_track | is_lepton) * rng.choice([-1.0, 1.0], shape),
    }
    valid = np.arange(shape[1]) < lengths[:, None]
    return np.stack([values[name][valid] for name in PARTICLE_CORE], axis=1).astype(np.float32)


def _write_group(path: Path, columns: Mapping[str, np.ndarray]) -> None:
    num_rows = len(columns["label"])
    options = {
        **columns,
        **dict(zip(hlf_names(), columns["hlf"].T.copy(), strict=True)),
        **list_columns(
            offsets_of(columns["num_particles"]), particles_from_core(columns["core"].T)
        ),
        "file_uuid": ["00000000-0000-0000-0000-000000000000"] * num_rows,
        "sample": [CLASSES[label] for label in columns["label"]],
    }
    table = pa.table({name: options[name] for name in features_schema().names}).cast(
        features_schema()
    )
    pq.write_table(table, path, row_group_size=max(1, num_rows))
