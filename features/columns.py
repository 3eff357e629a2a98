"""The one table of columns: every feature of an event and of a particle, and the columns of the features Parquet.

Kernels, readers, networks, exports, plots and docs read it; nobody writes a column number. To add a high-level feature,
add its row to `HIGH_LEVEL` and a function of the same name to `features.high_level`.
"""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple


class Scaling(StrEnum):
    """How a network scales a feature before its first layer."""

    STANDARD = "standard"
    """Less its mean, over its standard deviation, both of the training split without padding (`features.scaling`)."""
    NONE = "none"


class Binning(NamedTuple):
    """Equal bins of a histogram; what lies outside is counted in the flow bins."""

    bins: int
    low: float
    high: float
    log: bool = False
    """Whether the feature falls so steeply that it is drawn on a logarithmic axis."""


class Feature(NamedTuple):
    """One number of an event or of a particle: raw physics."""

    name: str
    unit: str
    """`1` where it has none."""
    meaning: str
    binning: Binning | None = None
    """Of its histogram on the dataset card, if it has one."""
    scaling: Scaling = Scaling.STANDARD

    @property
    def label(self) -> str:
        """Name and unit, for an axis.

        Examples:
            >>> Feature("met", "GeV", "").label, Feature("num_jets", "1", "").label
            ('met [GeV]', 'num_jets')
        """
        return self.name if self.unit == "1" else f"{self.name} [{self.unit}]"


_AZIMUTH: Final = Binning(16, -math.pi, math.pi)
_LEPTON_ISOLATION: Final = Binning(30, 0, 0.45)
_ISOLATION: Final = Binning(50, 0, 50, log=True)

#: Of an event. A jet counts above a pT and within an |eta| (`features.min_jet_pt`, `features.max_jet_abs_eta`).
HIGH_LEVEL: Final = (
    Feature("ht", "GeV", "sum of pT of the jets", Binning(30, 0, 1200)),
    Feature("met", "GeV", "missing transverse energy", Binning(30, 0, 300)),
    Feature("met_phi", "rad", "its azimuth", _AZIMUTH),
    Feature("mt", "GeV", "sqrt(2 pT MET (1 - cos Δφ)) of the lepton", Binning(30, 0, 240)),
    Feature("num_jets", "1", "number of jets", Binning(12, -0.5, 11.5)),
    Feature("num_bjets", "1", "jets with a b-tag", Binning(6, -0.5, 5.5)),
    Feature("lepton_pt", "GeV", "of the selected lepton, as all that follow", Binning(30, 0, 240)),
    Feature("lepton_eta", "1", "its pseudorapidity", Binning(20, -4, 4)),
    Feature("lepton_phi", "rad", "its azimuth", _AZIMUTH),
    Feature("lepton_iso_charged", "1", "sum of pT of tracks around it, over its own pT", _LEPTON_ISOLATION),
    Feature("lepton_iso_photon", "1", "the same of photons", _LEPTON_ISOLATION._replace(log=True)),
    Feature("lepton_iso_neutral", "1", "the same of neutral hadrons", _LEPTON_ISOLATION._replace(log=True)),
    Feature("lepton_charge", "e", "-1 or 1", Binning(3, -1.5, 1.5)),
    Feature("lepton_is_electron", "1", "1: electron, 0: muon", Binning(2, -0.5, 1.5)),
)
HLF_NAMES: Final = tuple(feature.name for feature in HIGH_LEVEL)
NUM_HLF: Final = len(HIGH_LEVEL)

#: Of a particle; the selected lepton is the first.
PARTICLE: Final = (
    Feature("energy", "GeV", "of a massless particle: pT cosh η", Binning(50, 0, 200, log=True)),
    Feature("px", "GeV", "momentum along x"),
    Feature("py", "GeV", "momentum along y"),
    Feature("pz", "GeV", "momentum along the beam"),
    Feature("pt", "GeV", "transverse momentum; of photons and neutral hadrons ET", Binning(50, 0, 50, log=True)),
    Feature("eta", "1", "pseudorapidity", Binning(50, -5, 5)),
    Feature("phi", "rad", "azimuth", Binning(32, -math.pi, math.pi)),
    Feature("vertex_x", "mm", "of tracks; 0 for all others, the lepton too"),
    Feature("vertex_y", "mm", "of tracks"),
    Feature("vertex_z", "mm", "of tracks", Binning(50, -200, 200, log=True)),
    Feature("iso_charged", "1", "as of the lepton above, around this particle", _ISOLATION),
    Feature("iso_photon", "1", "the same of photons", _ISOLATION),
    Feature("iso_neutral", "1", "the same of neutral hadrons", _ISOLATION),
    Feature("is_charged_hadron", "1", "a track; exactly one of these five is 1, the others 0"),
    Feature("is_neutral_hadron", "1", "a neutral hadron"),
    Feature("is_photon", "1", "a photon"),
    Feature("is_electron", "1", "the selected lepton only"),
    Feature("is_muon", "1", "the selected lepton only"),
    Feature("charge", "e", "0 for photons and neutral hadrons"),
)
PARTICLE_FEATURE_NAMES: Final = tuple(feature.name for feature in PARTICLE)
NUM_PARTICLE_FEATURES: Final = len(PARTICLE)

MAX_TRACKS: Final = 450
MAX_PHOTONS: Final = 150
MAX_NEUTRAL_HADRONS: Final = 200
#: The lepton and the capped candidates: 801 rows.
MAX_PARTICLES: Final = 1 + MAX_TRACKS + MAX_PHOTONS + MAX_NEUTRAL_HADRONS


class Column(NamedTuple):
    """One column of the features Parquet."""

    name: str
    dtype: str
    """Of its numbers in the file, or `string`."""
    features: tuple[Feature, ...] = ()
    """Along the last axis of `shape`; of a single number the one. None where no network takes the column."""
    shape: tuple[int, ...] = ()
    """Of one event; networks take particle lists that are cut after the longest event, too."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of its features."""
        return tuple(feature.name for feature in self.features)

    @property
    def size(self) -> int:
        """Numbers of one event, which the file holds as one list."""
        return math.prod(self.shape)

    @property
    def is_scaled(self) -> bool:
        """Whether a scaler belongs to it."""
        return any(feature.scaling is not Scaling.NONE for feature in self.features)

    def to_json(self) -> dict[str, Any]:
        """Shape, names and units."""
        return {
            "shape": list(self.shape),
            "names": list(self.names),
            "units": [feature.unit for feature in self.features],
        }


NUM_PARTICLES: Final = Feature(
    "num_particles", "1", "rows of `particles` that are no padding", Binning(30, 0, 802), Scaling.NONE
)

#: All columns of the features Parquet by name, in the order of the file.
COLUMNS: Final = {
    column.name: column
    for column in (
        Column("hlf", "float32", HIGH_LEVEL, (NUM_HLF,)),
        Column("particles", "float32", PARTICLE, (MAX_PARTICLES, NUM_PARTICLE_FEATURES)),
        Column("num_particles", "int32", (NUM_PARTICLES,)),
        Column("label", "int64"),
        Column("weight", "float32"),
        Column("file_uuid", "string"),
        Column("entry", "int64"),
    )
}
#: Those that networks take.
INPUT_COLUMNS: Final = {name: column for name, column in COLUMNS.items() if column.features}


def numbers_of(names: Sequence[str]) -> Any:
    """The numbers of columns as attributes, which compiled kernels take for constants.

    Examples:
        >>> numbers_of(HLF_NAMES).met
        1
    """
    return namedtuple("Numbers", names)(*range(len(names)))  # noqa: PYI024 - of names known at run time
