"""Makes inputs of networks from the features Parquet: the vector `hlf`, the matrix of 801 x 19.

The file holds 11 numbers of a particle, unpadded. Energy, momenta and flags follow from them and
are computed here, in double precision, each time a table is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from features.arrays import offsets_from_counts
from features.columns import (
    ELECTRON,
    INPUT_COLUMNS,
    MAX_PARTICLES,
    MUON,
    NEUTRAL,
    NUM_PARTICLE_FEATURES,
    NUM_PARTICLES,
    PARTICLE_COLUMNS,
    PARTICLE_CORE,
    PARTICLE_FEATURE_NAMES,
    PHOTON,
    TRACK,
    column_numbers,
    hlf_names,
)
from features.errors import DatasetError
from features.kinematics import energy, momentum
from hep_core.compiling import compiled

_COLUMN: Final = column_numbers(PARTICLE_FEATURE_NAMES)


class Particles(NamedTuple):
    """Particles of many events: a flat array per column of `features.columns.PARTICLE_CORE`."""

    species: NDArray[np.int8]
    """Kind of each particle, the column `kind` there."""
    charge: NDArray[np.int32]
    pt: NDArray[np.float32]
    eta: NDArray[np.float32]
    phi: NDArray[np.float32]
    vertex_x: NDArray[np.float32]
    vertex_y: NDArray[np.float32]
    vertex_z: NDArray[np.float32]
    iso_charged: NDArray[np.float32]
    iso_photon: NDArray[np.float32]
    iso_neutral: NDArray[np.float32]


def model_inputs(
    table: pa.Table | pa.RecordBatch,
    names: Iterable[str],
    *,
    max_particles: int | None = MAX_PARTICLES,
) -> dict[str, NDArray[Any]]:
    """Make inputs of networks from events of the features Parquet.

    Args:
        table: Events, with the columns `required_columns(names)`.
        names: `hlf`, `particles`, `num_particles`, or any column of numbers.
        max_particles: Rows of the matrices, as `features.dataset.FeatureDataset.max_particles`;
            None for the number of particles of the longest event.

    Returns:
        By name: `hlf` (num_events, NUM_HLF) and `particles` (num_events, 801, 19), zero padded,
        float32, unscaled, with the features of `features.columns.INPUT_COLUMNS` along the last
        axis; others (num_events,).

    Raises:
        DatasetError: A column is missing or has nulls, or the lists of an event have different or
            too large lengths.

    Examples:
        >>> from features.schema import features_schema
        >>> inputs = model_inputs(features_schema().empty_table(), INPUT_COLUMNS)
        >>> {name: array.shape for name, array in inputs.items() if name != "hlf"}
        {'particles': (0, 801, 19), 'num_particles': (0,)}
    """
    inputs = {}
    for name in names:
        if name == "hlf":
            inputs[name] = hlf_array(table)
        elif name == "particles":
            offsets, particles = particle_arrays(table)
            inputs[name] = particle_matrices(offsets, particles, max_particles)
        else:
            inputs[name] = as_numpy(_column(table, name))
    return inputs


def required_columns(names: Iterable[str]) -> list[str]:
    """Columns of the features Parquet that `model_inputs` needs for some inputs, each once.

    Examples:
        >>> required_columns(["num_particles", "label", "num_particles"])
        ['num_particles', 'label']
    """
    columns: list[str] = []
    for name in names:
        columns += INPUT_COLUMNS[name].columns if name in INPUT_COLUMNS else [name]
    return list(dict.fromkeys(columns))


def hlf_array(table: pa.Table | pa.RecordBatch) -> NDArray[np.float32]:
    """The high-level features of events as (num_events, NUM_HLF)."""
    return np.column_stack([as_numpy(_column(table, name)) for name in hlf_names()])


def particle_arrays(table: pa.Table | pa.RecordBatch) -> tuple[NDArray[np.int64], Particles]:
    """Read the particles of events as flat arrays.

    Returns:
        (num_events + 1,) offsets: event i has the particles `offsets[i]:offsets[i + 1]`; and the
        particles.

    Raises:
        DatasetError: The lists of an event have different lengths.
    """
    num_particles = as_numpy(_column(table, NUM_PARTICLES.name))
    arrays = []
    for name, dtype in zip(PARTICLE_COLUMNS, PARTICLE_CORE.values(), strict=True):
        lists = _column(table, name)
        if (np.diff(as_numpy(lists.offsets)) != num_particles).any():
            raise DatasetError(
                f"the particle lists of an event differ from {NUM_PARTICLES.name} in length. "
                "Make the features again."
            )
        # flatten(), unlike .values, respects slices.
        arrays.append(as_numpy(lists.flatten()).astype(dtype, copy=False))
    return offsets_from_counts(num_particles), Particles(*arrays)


def particle_matrices(
    offsets: NDArray[np.int64], particles: Particles, max_particles: int | None = MAX_PARTICLES
) -> NDArray[np.float32]:
    """The particles of each event as a zero-padded matrix, (num_events, max_particles, 19).

    With None, the longest event gives the number of rows.

    Raises:
        DatasetError: An event has more particles.
    """
    longest = int(np.diff(offsets).max(initial=1))
    num_rows = longest if max_particles is None else max_particles
    if longest > num_rows:
        raise DatasetError(
            f"an event has {longest} particles, more than {num_rows}. Make the features again."
        )
    num_events = len(offsets) - 1
    matrices = np.empty((num_events, num_rows, NUM_PARTICLE_FEATURES), dtype=np.float32)
    fill_matrices(particles, offsets, matrices)
    return matrices


@compiled
def fill_features(
    particles: Particles, start: int, stop: int, features: NDArray[np.float32]
) -> None:
    """Compute the 19 features of the particles `start` to `stop` (exclusive) into `features`.

    `features` is (num_rows, 19), with at least stop - start rows; further rows stay as they are.
    """
    for row in range(stop - start):
        index = start + row
        species = particles.species[index]
        pt = float(particles.pt[index])
        eta = float(particles.eta[index])
        phi = float(particles.phi[index])
        features[row, _COLUMN.energy] = energy(pt, eta)
        px, py, pz = momentum(pt, eta, phi)
        features[row, _COLUMN.px] = px
        features[row, _COLUMN.py] = py
        features[row, _COLUMN.pz] = pz
        # pT to the isolations have the same order here (from index 2 on) and in the features.
        for column, numbers in enumerate(particles[2:], _COLUMN.pt):
            features[row, column] = numbers[index]
        # One flag for each kind of particle: 1 for that of this particle, else 0.
        for column, flagged in enumerate(
            (TRACK, NEUTRAL, PHOTON, ELECTRON, MUON), _COLUMN.is_charged_hadron
        ):
            features[row, column] = species == flagged
        features[row, _COLUMN.charge] = particles.charge[index]


@compiled
def fill_matrices(
    particles: Particles, offsets: NDArray[np.int64], matrices: NDArray[np.float32]
) -> None:
    """Fill `matrices`, (num_events, 801, 19), with the features of each event, then zeros."""
    for event in range(offsets.size - 1):
        start = offsets[event]
        stop = offsets[event + 1]
        fill_features(particles, start, stop, matrices[event])
        matrices[event, stop - start :] = 0.0


def particle_features(
    particles: Particles, max_particles: int | None = None
) -> NDArray[np.float32]:
    """The 19 features of the first particles, by default of all; (num_particles, 19)."""
    num_particles = len(particles.pt[:max_particles])
    features = np.empty((num_particles, NUM_PARTICLE_FEATURES), dtype=np.float32)
    fill_features(particles, 0, num_particles, features)
    return features


def list_columns(offsets: NDArray[np.int64], particles: Particles) -> dict[str, pa.Array]:
    """The particle columns of the features Parquet, one list per event, by name.

    `offsets` is (num_events + 1,), as `particle_arrays` gives it.
    """
    starts = pa.array(offsets.astype(np.int32))
    columns = {}
    for name, numbers in zip(PARTICLE_COLUMNS, particles, strict=True):
        columns[name] = pa.ListArray.from_arrays(starts, pa.array(numbers))
    return columns


def particles_from_core(core_columns: NDArray[np.float32]) -> Particles:
    """Convert the numbers of particles, as the kernels make them, to the types of the columns.

    `core_columns` is (11, num_particles): one row for each column of `PARTICLE_CORE`, all float32.
    """
    arrays = []
    for numbers, dtype in zip(core_columns, PARTICLE_CORE.values(), strict=True):
        array = np.ascontiguousarray(numbers, dtype)
        # Arrays from Arrow are read-only too; numba would compile again for writable ones.
        array.flags.writeable = False
        arrays.append(array)
    return Particles(*arrays)


def as_numpy(column: pa.Array) -> NDArray[Any]:
    """The numbers of a column without nulls, read-only.

    pyarrow's own conversion would load pandas, which takes half a second.
    """
    array = np.from_dlpack(column)
    array.flags.writeable = False
    return array


def _column(table: pa.Table | pa.RecordBatch, name: str) -> pa.Array:
    """A column as one array; DatasetError if it is missing or has nulls."""
    if name not in table.schema.names:
        raise DatasetError(f"the features have no column '{name}'. Make them again.")
    column = table.column(name)
    require_no_nulls(name, column)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return column


def require_no_nulls(name: str, column: pa.Array | pa.ChunkedArray) -> None:
    """Refuse a column of the features with empty values, which NaN is not.

    Raises:
        DatasetError: It has some.
    """
    if column.null_count:
        raise DatasetError(
            f"column '{name}' of the features has {column.null_count} empty values. "
            "Make them again."
        )
