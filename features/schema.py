"""The contract of the features Parquet: names, order and shapes of the model inputs."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

#: High-level features, in column order. GeV, radians, counts; isolations relative to the lepton's pT.
HLF_NAMES: Final = (
    "ht",
    "met",
    "met_phi",
    "mt",
    "num_jets",
    "num_bjets",
    "lepton_pt",
    "lepton_eta",
    "lepton_phi",
    "lepton_iso_charged",
    "lepton_iso_photon",
    "lepton_iso_neutral",
    "lepton_charge",
    "lepton_is_electron",
)
NUM_HLF: Final = len(HLF_NAMES)

#: Features of one particle, in column order. GeV, radians, mm, units of e; isolations relative to the particle's pT.
PARTICLE_FEATURE_NAMES: Final = (
    "energy",
    "px",
    "py",
    "pz",
    "pt",
    "eta",
    "phi",
    "vertex_x",
    "vertex_y",
    "vertex_z",
    "iso_charged",
    "iso_photon",
    "iso_neutral",
    "is_charged_hadron",
    "is_neutral_hadron",
    "is_photon",
    "is_electron",
    "is_muon",
    "charge",
)
NUM_PARTICLE_FEATURES: Final = len(PARTICLE_FEATURE_NAMES)

MAX_TRACKS: Final = 450
MAX_PHOTONS: Final = 150
MAX_NEUTRAL_HADRONS: Final = 200
#: The lepton and the capped candidates: 801 rows.
MAX_PARTICLES: Final = 1 + MAX_TRACKS + MAX_PHOTONS + MAX_NEUTRAL_HADRONS

SPLITS: Final = ("train", "val", "test")

#: Columns that say which event a row is: they never enter a model.
IDENTITY_COLUMNS: Final = ("file_uuid", "entry")


def features_schema() -> pa.Schema:
    """Arrow schema of the features Parquet; values are raw physics, unscaled; nothing is nullable.

    `hlf` holds 14 numbers a row, `particles` 801 * 19 (row-major, zero padded): plain lists, because petastorm reads
    lists of equal length as matrices.

    Examples:
        >>> features_schema().names
        ['hlf', 'particles', 'num_particles', 'label', 'weight', 'file_uuid', 'entry']
    """
    floats = pa.list_(pa.field("element", pa.float32(), nullable=False))
    columns = [
        ("hlf", floats),
        ("particles", floats),
        ("num_particles", pa.int32()),
        ("label", pa.int64()),
        ("weight", pa.float32()),
        ("file_uuid", pa.string()),
        ("entry", pa.int64()),
    ]
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns])
