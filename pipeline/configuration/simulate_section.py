"""Settings of the simulation: processes, events, filters, pile-up and seed."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field, PositiveInt, model_validator

from hep_core.settings_section import SettingsSection

#: Pythia's settings of the processes that have a name of their own.
PRESETS: dict[str, tuple[str, ...]] = {
    "ttbar": ("Top:gg2ttbar = on", "Top:qqbar2ttbar = on"),
    "wjets": ("WeakSingleBoson:ffbar2W = on", "24:onMode = off", "24:onIfAny = 11 13 15"),
    "qcd": ("HardQCD:all = on", "PhaseSpace:pTHatMin = 60"),
}
#: How a sample of the config names the files of a process: `files: ["simulate://ttbar"]`.
SCHEME = "simulate://"
#: Folder of the minimum-bias events, beside those of the processes.
POOL = "pile-up"


class HeavyFlavourSettings(SettingsSection):
    """Leptons of heavy flavour: events with a hard heavy quark are hadronised and decayed often."""

    min_quark_pt: float = Field(default=22.0, ge=0)
    """Transverse momentum above which an event needs a charm or bottom quark after the shower
    [GeV]."""
    hadronisations: PositiveInt = 10
    """How often such an event is hadronised."""
    decays: PositiveInt = 20
    """How often the charm and bottom hadrons of each of these are decayed. One version that passes
    the lepton filter is kept; its weight is the share of all versions that pass."""


class LeptonFilterSettings(SettingsSection):
    """The filter on generated particles, before detector and pile-up; it saves time."""

    min_pt: float = Field(default=23.0, ge=0)
    """An event needs an electron or muon above this transverse momentum [GeV]; 0 keeps all
    events."""
    max_eta: float = Field(default=2.5, gt=0)
    """Highest pseudorapidity of this lepton."""
    max_isolation: float = Field(default=0.45, gt=0)
    """Highest isolation of this lepton: sum of the transverse momenta of visible particles within
    0.3, over its own."""
    thinning: PositiveInt = 5
    """Of events whose hard process gives no such electron or muon, one in this number is followed;
    the decays of its taus and heavy hadrons are drawn this often, and its weight is the number of
    versions that pass. With enrichment: of events without a heavy quark well above its threshold,
    with this weight. 1: all are followed."""


class ProcessSettings(SettingsSection):
    """One process of the generator."""

    #: More events only add files; they change none.
    SPEED_ONLY: ClassVar[frozenset[str]] = frozenset({"events"})

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$", max_length=100)
    """Name of the process: a sample reads its files as `simulate://NAME`. `ttbar`, `wjets` and
    `qcd` bring Pythia's settings with them; `qcd` begins at a pTHat of 60 GeV."""
    events: PositiveInt = 1000
    """Number of events that pass the lepton filter."""
    pythia: list[str] = Field(default=[])
    """Further settings of Pythia 8, such as `PhaseSpace:pTHatMin = 30`; they come last, so they
    prevail."""
    file: Path | None = None
    """A file with settings of Pythia 8 (`.cmnd`) instead of those of the name; null for none."""
    heavy_flavour: HeavyFlavourSettings | None = None
    """Enrichment in leptons from charm and bottom quarks; null for none."""

    def lines(self) -> list[str]:
        """Return all settings of Pythia for this process, in order; later ones prevail.

        They are those of its file or, without one, of its name, and then its own `pythia`.
        """
        if self.file is None:
            lines = list(PRESETS.get(self.name, ()))
        else:
            stripped = map(str.strip, self.file.read_text(encoding="utf-8").splitlines())
            # Lines of Pythia's files that start with `!` or `#` are comments.
            lines = [line for line in stripped if line and not line.startswith(("!", "#"))]
        return [*lines, *self.pythia]


class PileUpSettings(SettingsSection):
    """Further proton-proton collisions in the same bunch crossing."""

    mean: float = Field(default=20.0, ge=0, le=1000)
    """Mean number of collisions, Poisson distributed; 0 for none."""
    pool: PositiveInt = 5000
    """Number of different minimum-bias events; each event draws its own from them, turned by random
    angles."""
    beam_spot_mm: float = Field(default=53.0, gt=0)
    """Spread of the collisions along the beam: standard deviation of a Gaussian, cut at 250 mm
    [mm]."""


class SimulateSettings(SettingsSection):
    """The events that the stage `simulate` makes; needs the extra `simulate`."""

    processes: list[ProcessSettings] = Field(default=[])
    """The processes; empty if the samples come from elsewhere."""
    energy_tev: float = Field(default=13.0, gt=0.1, le=200)
    """Energy of the proton-proton collisions in their centre of mass [TeV]."""
    seed: int = Field(default=1, ge=0, le=2**32 - 1)
    """Seed of everything; the events are the same for any number of tasks. 0 to 2**32 - 1."""
    events_per_file: int = Field(default=250, ge=1, le=100_000)
    """Number of events in a file. A file is made by one Spark task, and is the unit that an
    interruption loses."""
    lepton_filter: LeptonFilterSettings = LeptonFilterSettings()
    pile_up: PileUpSettings = PileUpSettings()

    @model_validator(mode="after")
    def _processes_are_complete(self) -> Self:
        """Refuse processes whose name is taken, or that have no settings for Pythia."""
        names = [process.name for process in self.processes]
        for process in self.processes:
            if names.count(process.name) > 1:
                raise ValueError(
                    f"processes: the name '{process.name}' is given twice; names must differ"
                )
            if process.name == POOL:
                raise ValueError(
                    f"processes: '{POOL}' is the pool of minimum-bias events; choose another name"
                )
            if process.name not in PRESETS and not process.pythia and process.file is None:
                raise ValueError(
                    f"processes: '{process.name}' is none of {', '.join(PRESETS)}, so Pythia needs "
                    "its settings: give `pythia` or `file`"
                )
        return self

    def process(self, name: str) -> ProcessSettings:
        """Return the process of a name, which must exist."""
        return next(process for process in self.processes if process.name == name)
