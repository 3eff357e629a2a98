"""The inputs of networks from a table of the features Parquet: the vector `hlf` and the matrix of 801 x 19.

The file holds 11 numbers of a particle, unpadded. Energy, momenta and flags follow from them and are computed here, in
double precision, each time a table is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

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

_OUT: Final = column_numbers(PARTICLE_FEATURE_NAMES)


class Particles(NamedTuple):
    """The particles of many events, one flat array per column; fields as `features.columns.PARTICLE_CORE`."""

    kind: NDArray[np.int8]
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
    """Inputs of networks, from events of the features Parquet.

    Args:
        table: Events, with the columns of `required_columns(names)`.
        names: `hlf`, `particles` and `num_particles`; of other names the numbers of the column.
        max_particles: Rows of the matrices, a `features.dataset.FeatureDataset.max_particles`; None for the number of
            particles of the longest event.

    Returns:
        By name: `hlf` (num_events, NUM_HLF) and `particles` (num_events, 801, 19), zero padded, float32, unscaled, with
        the features of `features.columns.INPUT_COLUMNS` along the last axis; others (num_events,).

    Raises:
        DatasetError: A column is missing or has nulls, or the lists of an event have different or too large lengths.

    Examples:
        >>> from features.schema import features_schema
        >>> made = model_inputs(features_schema().empty_table(), INPUT_COLUMNS)
        >>> {name: array.shape for name, array in made.items() if name != "hlf"}
        {'particles': (0, 801, 19), 'num_particles': (0,)}
    """
    made = {}
    for name in names:
        if name == "hlf":
            made[name] = hlf_array(table)
        elif name == "particles":
            made[name] = particle_matrices(*particle_arrays(table), max_particles)
        else:
            made[name] = as_numpy(_column(table, name))
    return made


def required_columns(names: Iterable[str]) -> list[str]:
    """Columns of the features Parquet that `model_inputs` needs.

    Examples:
        >>> required_columns(["num_particles", "label", "num_particles"])
        ['num_particles', 'label']
    """
    needed = (INPUT_COLUMNS[name].columns if name in INPUT_COLUMNS else (name,) for name in names)
    return list(dict.fromkeys(column for columns in needed for column in columns))


def hlf_array(table: pa.Table | pa.RecordBatch) -> NDArray[np.float32]:
    """The high-level features of events as (num_events, NUM_HLF)."""
    return np.column_stack([as_numpy(_column(table, name)) for name in hlf_names()])


def particle_arrays(table: pa.Table | pa.RecordBatch) -> tuple[NDArray[np.int64], Particles]:
    """The particles of events, and the (num_events + 1,) offsets of each event's."""
    lists = [_column(table, name) for name in PARTICLE_COLUMNS]
    lengths = as_numpy(_column(table, NUM_PARTICLES.name))
    if any((np.diff(as_numpy(each.offsets)) != lengths).any() for each in lists):
        raise DatasetError(
            f"the particle lists of an event differ from {NUM_PARTICLES.name} in length. Make the features again."
        )
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    # flatten(), unlike .values, honours slices.
    flat = [as_numpy(each.flatten()) for each in lists]
    return offsets, Particles(
        *(
            values.astype(dtype, copy=False)
            for values, dtype in zip(flat, PARTICLE_CORE.values(), strict=True)
        )
    )


def particle_matrices(
    offsets: NDArray[np.int64], particles: Particles, max_particles: int | None = MAX_PARTICLES
) -> NDArray[np.float32]:
    """The particles of each event as a zero-padded matrix, (num_events, max_particles, 19); None for the longest.

    Raises:
        DatasetError: An event has more particles.
    """
    longest = int(np.diff(offsets).max(initial=1))
    rows = longest if max_particles is None else max_particles
    if longest > rows:
        raise DatasetError(
            f"an event has {longest} particles, more than {rows}. Make the features again."
        )
    out = np.empty((len(offsets) - 1, rows, NUM_PARTICLE_FEATURES), dtype=np.float32)
    fill_matrices(particles, offsets, out)
    return out


@compiled
def fill_features(particles: Particles, first: int, stop: int, out: NDArray[np.float32]) -> None:
    """Fill `out`, (at least stop - first, 19), with the features of the particles `first` to `stop`."""
    for row in range(stop - first):
        at = first + row
        kind = particles.kind[at]
        pt, eta, phi = float(particles.pt[at]), float(particles.eta[at]), float(particles.phi[at])
        out[row, _OUT.energy] = energy(pt, eta)
        out[row, _OUT.px], out[row, _OUT.py], out[row, _OUT.pz] = momentum(pt, eta, phi)
        # Numbers from pT to the isolations, and then flags, follow one another in both tables.
        for column, values in enumerate(particles[2:], _OUT.pt):
            out[row, column] = values[at]
        for column, flagged in enumerate(
            (TRACK, NEUTRAL, PHOTON, ELECTRON, MUON), _OUT.is_charged_hadron
        ):
            out[row, column] = kind == flagged
        out[row, _OUT.charge] = particles.charge[at]


@compiled
def fill_matrices(
    particles: Particles, offsets: NDArray[np.int64], out: NDArray[np.float32]
) -> None:
    """Fill `out`, (num_events, 801, 19), with the features of the particles of each event, then zeros."""
    for event in range(offsets.size - 1):
        fill_features(particles, offsets[event], offsets[event + 1], out[event])
        out[event, offsets[event + 1] - offsets[event] :] = 0.0


def particle_features(particles: Particles, at_most: int | None = None) -> NDArray[np.float32]:
    """The 19 features of the first particles, by default of all; (num_particles, 19)."""
    out = np.empty((len(particles.pt[:at_most]), NUM_PARTICLE_FEATURES), dtype=np.float32)
    fill_features(particles, 0, len(out), out)
    return out


def list_columns(offsets: NDArray[np.int64], particles: Particles) -> dict[str, pa.Array]:
    """The particle columns of the features Parquet, from the particles of events and each event's offsets."""
    starts = pa.array(offsets.astype(np.int32))
    columns = zip(PARTICLE_COLUMNS, particles, strict=True)
    return {name: pa.ListArray.from_arrays(starts, pa.array(values)) for name, values in columns}


def particles_from_core(columns: NDArray[np.float32]) -> Particles:
    """Particles from their numbers as the kernels make them, (11, num_particles)."""
    typed = zip(columns, PARTICLE_CORE.values(), strict=True)
    particles = Particles(*(np.ascontiguousarray(values, dtype) for values, dtype in typed))
    for values in particles:
        # As arrays from Arrow are; otherwise numba would compile everything twice.
        values.flags.writeable = False
    return particles


def as_numpy(column: pa.Array) -> NDArray[Any]:
    """The numbers of a column without nulls, read-only; pyarrow's own conversion would load pandas, half a second."""
    found = np.from_dlpack(column)
    found.flags.writeable = False
    return found


def _column(table: pa.Table | pa.RecordBatch, name: str) -> pa.Array:
    if name not in table.schema.names:
        raise DatasetError(f"the features have no column '{name}'. Make them again.")
    column = table.column(name)
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if column.null_count:
        raise DatasetError(
            f"column '{name}' of the features has {column.null_count} empty values. Make them again."
        )
    return column
