"""The table of columns: all features of events and particles, all columns of the features Parquet.

Kernels, readers, networks, exports, plots and docs take names and column numbers from it. A
high-level feature is a row of `HIGH_LEVEL` and a function in `features.high_level`; a plugin adds
both by `features.functions.high_level_feature`.
"""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

#: Largest size of a scaled value. Only rare values reach it, such as the flags of the lepton among
#: 700 particles.
SCALED_LIMIT: Final = 10.0


class Binning(NamedTuple):
    """Equal bins of a histogram, with underflow and overflow bins."""

    bins: int
    """Number of bins."""
    low: float
    """Lower edge of the first bin, in the unit of the feature."""
    high: float
    """Upper edge of the last bin."""
    log: bool = False
    """Whether the histogram has a logarithmic axis of counts, for a steeply falling feature."""


class RotationBehaviour(StrEnum):
    """How a feature changes when the event is rotated around the beam, or mirrored along it."""

    NONE = "none"
    """It stays as it is."""
    AZIMUTH = "azimuth"
    """It is an azimuth: the angle of the rotation is added."""
    X = "x"
    """It is the x of a vector, and the next feature is its y."""
    Y = "y"
    """It is the y of a vector."""
    BEAM = "beam"
    """It changes its sign with the direction of the beam, such as z or η."""


class Feature(NamedTuple):
    """A number of an event or of a particle, unscaled, or another column of features Parquet."""

    name: str
    unit: str
    """Physical unit; `1` for pure numbers, empty if there is none."""
    meaning: str
    binning: Binning | None = None
    """Bins of the histogram on the dataset card; None for no histogram."""
    is_scaled: bool = True
    """Whether networks scale it in their first layer, to at most SCALED_LIMIT in size.

    A feature x becomes (y - mean) / standard deviation (`features.scaling`), both of the training
    split without padding. y is x, or, with `log_above` u, asinh(x / u): linear below u, the
    logarithm of 2 |x| / u with the sign of x above."""
    log_above: float = 0.0
    """Size above which networks see the logarithm, for a heavy tail; in the feature's unit, 0 for a
    linear feature."""
    rotation: RotationBehaviour = RotationBehaviour.NONE
    dtype: str = "float32"
    """NumPy dtype of the column's numbers, or `string`."""
    is_list: bool = False
    """Whether an event has one number per particle, in the same order in all such columns."""
    label: str = ""
    """Text on axes, in matplotlib's mathtext, without the unit; empty to derive it from the
    name."""


_AZIMUTH: Final = Binning(16, -math.pi, math.pi)
_LEPTON_ISO: Final = Binning(30, 0, 0.45)
_LEPTON_ISO_LOG: Final = _LEPTON_ISO._replace(log=True)
_ISOLATION: Final = Binning(50, 0, 50, log=True)
_VERTEX_Z: Final = Binning(50, -200, 200, log=True)

#: Features of an event. Jets count above a pT and within an |eta| (`features.min_jet_pt`,
#: `features.max_jet_abs_eta`).
HIGH_LEVEL: Final = [
    Feature("ht", "GeV", "sum of pT of the jets", Binning(30, 0, 1200), log_above=100),
    Feature("met", "GeV", "missing transverse energy", Binning(30, 0, 300), log_above=20),
    Feature(
        "met_phi",
        "rad",
        "azimuth of the missing transverse energy",
        _AZIMUTH,
        rotation=RotationBehaviour.AZIMUTH,
    ),
    Feature(
        "mt",
        "GeV",
        "transverse mass of lepton and MET: sqrt(2 pT MET (1 - cos Δφ))",
        Binning(30, 0, 240),
        log_above=50,
    ),
    Feature("num_jets", "1", "number of jets", Binning(12, -0.5, 11.5)),
    Feature("num_bjets", "1", "number of jets with a b-tag", Binning(6, -0.5, 5.5)),
    Feature("lepton_pt", "GeV", "pT of the selected lepton", Binning(30, 0, 240), log_above=20),
    Feature(
        "lepton_eta",
        "1",
        "pseudorapidity of the lepton",
        Binning(20, -4, 4),
        rotation=RotationBehaviour.BEAM,
    ),
    Feature(
        "lepton_phi", "rad", "azimuth of the lepton", _AZIMUTH, rotation=RotationBehaviour.AZIMUTH
    ),
    Feature(
        "lepton_iso_charged",
        "1",
        "lepton isolation from tracks, relative to its pT",
        _LEPTON_ISO,
        log_above=0.05,
    ),
    Feature(
        "lepton_iso_photon",
        "1",
        "isolation of the lepton from photons",
        _LEPTON_ISO_LOG,
        log_above=0.05,
    ),
    Feature(
        "lepton_iso_neutral",
        "1",
        "isolation of the lepton from neutral hadrons",
        _LEPTON_ISO_LOG,
        log_above=0.05,
    ),
    Feature("lepton_charge", "e", "charge of the lepton: -1 or 1", Binning(3, -1.5, 1.5)),
    Feature("lepton_is_electron", "1", "1 for an electron, 0 for a muon", Binning(2, -0.5, 1.5)),
]


def hlf_names() -> tuple[str, ...]:
    """Names of the high-level features, those of plugins last."""
    return tuple(feature.name for feature in HIGH_LEVEL)


#: Features of a particle; the selected lepton is the first particle.
PARTICLE: Final = (
    Feature(
        "energy",
        "GeV",
        "energy as a massless particle: pT cosh η",
        Binning(50, 0, 200, log=True),
        log_above=1,
    ),
    Feature("px", "GeV", "momentum along x", log_above=1, rotation=RotationBehaviour.X),
    Feature("py", "GeV", "momentum along y", log_above=1, rotation=RotationBehaviour.Y),
    Feature("pz", "GeV", "momentum along the beam", log_above=1, rotation=RotationBehaviour.BEAM),
    Feature(
        "pt",
        "GeV",
        "transverse momentum; ET of neutral particles",
        Binning(50, 0, 50, log=True),
        log_above=0.5,
    ),
    Feature("eta", "1", "pseudorapidity", Binning(50, -5, 5), rotation=RotationBehaviour.BEAM),
    Feature(
        "phi", "rad", "azimuth", Binning(32, -math.pi, math.pi), rotation=RotationBehaviour.AZIMUTH
    ),
    Feature(
        "vertex_x",
        "mm",
        "x of a track's vertex; else 0, for the lepton too",
        log_above=0.1,
        rotation=RotationBehaviour.X,
    ),
    Feature(
        "vertex_y",
        "mm",
        "y of a track's vertex; else 0",
        log_above=0.1,
        rotation=RotationBehaviour.Y,
    ),
    Feature(
        "vertex_z",
        "mm",
        "z of a track's vertex; else 0",
        _VERTEX_Z,
        log_above=50,
        rotation=RotationBehaviour.BEAM,
    ),
    Feature(
        "iso_charged",
        "1",
        "isolation from tracks, relative to the particle's pT",
        _ISOLATION,
        log_above=1,
    ),
    Feature("iso_photon", "1", "isolation from photons", _ISOLATION, log_above=1),
    Feature("iso_neutral", "1", "isolation from neutral hadrons", _ISOLATION, log_above=1),
    Feature("is_charged_hadron", "1", "1 for a track, else 0; exactly one of the five flags is 1"),
    Feature("is_neutral_hadron", "1", "1 for a neutral hadron, else 0"),
    Feature("is_photon", "1", "1 for a photon, else 0"),
    Feature("is_electron", "1", "1 for the selected lepton if it is an electron, else 0"),
    Feature("is_muon", "1", "1 for the selected lepton if it is a muon, else 0"),
    Feature("charge", "e", "charge; 0 for photons and neutral hadrons"),
)
PARTICLE_FEATURE_NAMES: Final = tuple(feature.name for feature in PARTICLE)
NUM_PARTICLE_FEATURES: Final = len(PARTICLE)

#: Highest numbers of candidates in the particle list, by the settings of `features` that replace
#: them.
CAPS: Final = {"max_tracks": 450, "max_photons": 150, "max_neutral_hadrons": 200}
#: The lepton and the capped candidates, unless these settings differ: 801 rows.
MAX_PARTICLES: Final = 1 + sum(CAPS.values())


def max_particles(definitions: Mapping[str, Any]) -> int:
    """Most particles of an event: the lepton, and the caps that the settings of features state.

    Examples:
        >>> max_particles({}), max_particles({"max_tracks": 1000, "max_photons": 0})
        (801, 1201)
    """
    caps = [int(definitions.get(name, default)) for name, default in CAPS.items()]
    return 1 + sum(caps)


#: Numbers of a particle that the features Parquet holds, with their types; the 19 features follow
#: from them.
PARTICLE_CORE: Final = {
    "kind": "int8",
    "charge": "int32",
    **dict.fromkeys(("pt", "eta", "phi", "vertex_x", "vertex_y", "vertex_z"), "float32"),
    **dict.fromkeys(("iso_charged", "iso_photon", "iso_neutral"), "float32"),
}
NUM_CORE: Final = len(PARTICLE_CORE)
#: Meaning of the numbers in `particle_kind`.
PARTICLE_KINDS: Final = ("track", "photon", "neutral hadron", "electron", "muon")
TRACK, PHOTON, NEUTRAL, ELECTRON, MUON = range(len(PARTICLE_KINDS))


_KIND_CODES: Final = ", ".join(f"{code} {name}" for code, name in enumerate(PARTICLE_KINDS))
_KIND: Final = Feature("kind", "1", f"kind of the particle: {_KIND_CODES}")
_PARTICLE_BY_NAME: Final = {feature.name: feature for feature in (*PARTICLE, _KIND)}


def _particle_column(name: str, dtype: str) -> Feature:
    """The column of lists that holds a number of each particle, `particle_<name>`."""
    return _PARTICLE_BY_NAME[name]._replace(name=f"particle_{name}", dtype=dtype, is_list=True)


PARTICLE_COLUMNS: Final = {
    f"particle_{name}": _particle_column(name, dtype) for name, dtype in PARTICLE_CORE.items()
}
NUM_PARTICLES: Final = Feature(
    "num_particles",
    "1",
    "number of particles, the lepton included",
    Binning(30, 0, 802),
    is_scaled=False,
    dtype="int32",
)

#: All columns of the features Parquet by name, in the order of the file.
COLUMNS: Final[dict[str, Feature]] = {}


class ModelInput(NamedTuple):
    """An input of networks; `features.matrices` makes it from columns of the features Parquet."""

    name: str
    features: tuple[Feature, ...]
    """Features along the last axis of `shape`, or the one feature of a scalar."""
    shape: tuple[int, ...] = ()
    """Shape of one event. Networks also accept particle lists that end with the longest event."""
    columns: tuple[str, ...] = ()
    """Columns of the features Parquet that it is made from."""

    @property
    def dtype(self) -> str:
        """NumPy dtype."""
        return self.features[0].dtype

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features."""
        return tuple(feature.name for feature in self.features)

    @property
    def is_scaled(self) -> bool:
        """Whether networks scale it."""
        return any(feature.is_scaled for feature in self.features)

    @property
    def log_above(self) -> tuple[float, ...]:
        """`Feature.log_above` of each feature."""
        return tuple(feature.log_above for feature in self.features)

    def to_json(self) -> dict[str, Any]:
        """The shape, and the names and units of the features, as JSON holds them."""
        return {
            "shape": list(self.shape),
            "names": list(self.names),
            "units": [feature.unit for feature in self.features],
        }


#: All inputs by name.
INPUT_COLUMNS: Final = {
    "hlf": ModelInput("hlf", ()),
    "particles": ModelInput(
        "particles",
        PARTICLE,
        (MAX_PARTICLES, NUM_PARTICLE_FEATURES),
        (*PARTICLE_COLUMNS, NUM_PARTICLES.name),
    ),
    "num_particles": ModelInput("num_particles", (NUM_PARTICLES,), columns=("num_particles",)),
}
_EVENT_COLUMNS: Final = (
    Feature("label", "1", "number of the class", dtype="int64"),
    Feature("weight", "1", "physics weight", dtype="float64"),
    Feature("sample", "", "name of the sample", dtype="string"),
    Feature("file_uuid", "", "UUID of the ROOT file", dtype="string"),
    Feature("entry", "1", "entry in the ROOT file", dtype="int64"),
)


def _fill_tables() -> None:
    """Fill the tables `COLUMNS` and, for `hlf`, `INPUT_COLUMNS` again from `HIGH_LEVEL`."""
    COLUMNS.clear()
    for column in (*HIGH_LEVEL, *PARTICLE_COLUMNS.values(), NUM_PARTICLES, *_EVENT_COLUMNS):
        COLUMNS[column.name] = column
    INPUT_COLUMNS["hlf"] = ModelInput("hlf", tuple(HIGH_LEVEL), (len(HIGH_LEVEL),), hlf_names())


_fill_tables()


def add_high_level(feature: Feature) -> None:
    """Add a high-level feature behind the present ones, to all tables of this module.

    Raises:
        ValueError: A column has this name, or the row is incomplete.
    """
    if feature.name in COLUMNS or feature.name in INPUT_COLUMNS:
        raise ValueError(
            f"the features have a column '{feature.name}' already; give yours another name"
        )
    for name in (*COLUMNS, *INPUT_COLUMNS):
        if name.casefold() == feature.name.casefold():
            raise ValueError(
                f"the features have a column '{name}', and '{feature.name}' differs from it in "
                f"small and capital letters only, which Spark and SQL do not tell apart; give "
                f"yours another name"
            )
    if not feature.unit or not feature.meaning:
        raise ValueError(
            f"the feature '{feature.name}' needs a unit (`1` for a pure number) and a meaning"
        )
    HIGH_LEVEL.append(feature)
    _fill_tables()


def column_numbers(names: Sequence[str]) -> Any:
    """A named tuple with the number of each column, from 0, as the attribute of its name.

    Compiled kernels treat its attributes as constants.
    """
    # The names are known at run time only.
    return namedtuple("ColumnNumbers", names)(*range(len(names)))  # noqa: PYI024
