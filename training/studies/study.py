"""What a study's YAML file says: workload, methods, seeds, claims of the source, tables and figures."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, Union

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from ingestion.plugins import when_loaded
from training.algorithms.registry import METHODS, SlowMoSettings
from training.settings import TrainSettings
from training.simulation.cluster import ClusterSettings
from training.studies.measures import CURVES, check_measure, near
from training.workloads.registry import WORKLOADS, WorkloadSettings

#: The studies that come with the code, one YAML file each.
FOLDER: Final = Path(__file__).parent
#: Keys of a study that say what to make of its runs, not which there are.
WORDS: Final = ("title", "source", "shows", "about", "minutes", "demonstration", "claims", "tables", "figures")
#: The comparisons of a claim.
_KINDS: Final = ("better", "equivalent", "flat", "grows")
#: Sections of a run whose keys a study can vary.
_SECTIONS: Final[dict[str, type[BaseModel]]] = {"train": TrainSettings, "cluster": ClusterSettings}
#: Keys of `train` that a study takes from the config: how this machine starts ranks.
OF_MACHINE: Final = frozenset({"device", "launcher", "launcher_args", "max_restarts", "stall_seconds", "threads"})
#: Keys of `train` that a study does not take from its own file: those, and what it sets for all runs.
_SET_ELSEWHERE: Final = OF_MACHINE | {"reader", "seed", "seeds", "tensorboard"}
#: What an epoch's quantity is drawn against.
EPOCH: Final = "epoch"
SECONDS: Final = "seconds"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class StudiedMethod(_Section):
    """A method of a study: its settings of the training."""

    title: str = ""
    """Name in tables and figures; empty for that of the algorithm, with its slow momentum."""
    train: dict[str, Any]
    """Values of `train` that differ from those of the study."""
    fixed: list[str] = []
    """Varied keys that this method does not have; nor does it vary those that it sets itself."""
    vary: dict[str, list[Any]] = {}
    """Its own values of varied keys, instead of those of the study: learning rates around its best one."""


Chosen = str | dict[str, Any]
"""Runs of a study: a method, or a method and values of varied keys, `{method: easgd, train.workers: 4}`."""


def _own_rows() -> Any:
    """Settings of the workloads with rows of their own."""
    return Union[tuple(kind for name, kind in WORKLOADS.items() if name != "hep")]  # noqa: UP007 - a union of a list


if TYPE_CHECKING:
    OwnRowsSettings = WorkloadSettings
else:
    OwnRowsSettings = Annotated[_own_rows(), Field(discriminator="name")]
MeasureName = Annotated[str, AfterValidator(check_measure)]
Positive = Annotated[float, Field(gt=0)]


class Claim(_Section):
    """A sentence of the source, and the comparison that judges it."""

    says: str
    """The sentence, in few words."""
    place: str = ""
    """Where it stands: section, table, figure."""
    name: str = ""
    """By which pages quote its numbers."""
    topic: str = ""
    """What it is about: claims of a study about the same are one family in the correction for their number."""
    better: Chosen | None = None
    """What is better, with `than`."""
    equivalent: Chosen | None = None
    """What is as good, with `than`."""
    flat: Chosen | None = None
    """What stays the same, with `over`: each value of the key is compared with the first."""
    grows: Chosen | None = None
    """What grows, with `over`: the last value of the key is compared with the first."""
    than: Annotated[list[Chosen], BeforeValidator(lambda value: value if isinstance(value, list) else [value])] = []
    """What `better` and `equivalent` are compared with, each."""
    over: str | None = None
    """The varied key of `flat` and `grows`."""
    protocol: Literal["equal settings", "each at its best"] = "equal settings"
    """Whether both sides have the values of `at` for the keys of `best_of`, or each side its own best ones."""
    at: dict[str, Any] = {}
    """Values of the keys of `best_of` for `equal settings`."""
    measure: MeasureName = "test_accuracy"
    """What is compared."""
    size: Positive | None = None
    """By how much the source says that it is better or grows: a factor for times and rates, else a difference; null
    where it gives no number."""
    margin: Positive | None = None
    """The difference that counts as none, relative for times and rates; null for that of the measure."""
    because: str = ""
    """The reason for this margin."""
    share_of_cells: Annotated[float, Field(gt=0, le=1)] = 1.0
    """In which share of its comparisons it must be so: 1 for all."""
    seeds: PositiveInt | None = None
    """Number of seeds, fixed beforehand, that judge it, the first ones; null for all."""
    not_decidable: str = ""
    """Why no run here can decide it; empty for a claim that is judged."""

    @property
    def kind(self) -> str:
        """The comparison: `better`, `equivalent`, `flat` or `grows`."""
        return next(name for name in _KINDS if getattr(self, name) is not None)

    @property
    def is_of_equals(self) -> bool:
        """Whether it says that two are the same."""
        return self.kind in ("equivalent", "flat")

    @property
    def this(self) -> Chosen:
        """What is compared."""
        chosen: Chosen = getattr(self, self.kind)
        return chosen

    @property
    def chosen(self) -> list[Chosen]:
        """All that is compared."""
        return [self.this, *self.than]

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if sum(getattr(self, name) is not None for name in _KINDS) != 1:
            raise ValueError(f"a claim needs exactly one of {', '.join(_KINDS)}")
        if (self.kind in ("better", "equivalent")) != bool(self.than) or bool(self.than) == (self.over is not None):
            raise ValueError("better and equivalent need `than`; flat and grows need `over`")
        if self.size is not None and self.is_of_equals:
            raise ValueError(f"size has no effect on {self.kind}; the `margin` says what counts as none")
        if (self.margin is None) != (not self.because):
            raise ValueError("a margin needs `because`, its reason, and the reason a margin")
        return self


class StudyTable(_Section):
    """A table: a row for each method, a column for each measure or for each value of a varied key."""

    title: str
    measures: list[MeasureName] = Field(min_length=1)
    """The columns."""
    over: str | None = None
    """A varied key, whose values are the columns of a single measure."""
    methods: list[str] = []
    """The rows; empty for all methods."""
    given: dict[str, str] = {}
    """The numbers of the source by method, in a column of their own."""


class Panel(_Section):
    """A panel of a figure: an epoch's quantity against epochs or time, or as boxes; or a measure against a key."""

    y: str
    """Quantity of an epoch, or measure."""
    x: str | None = None
    """`epoch`, `seconds` or a varied key; null for boxes over all epochs and seeds."""
    methods: list[str] = []
    """The methods; empty for all."""
    where: dict[str, Any] = {}
    """Values of varied keys: a method that varies such a key is shown at this value only."""
    title: str = ""
    """Words in the panel."""
    log: list[Literal["x", "y"]] = []
    """The logarithmic axes."""

    @model_validator(mode="after")
    def _quantity_exists(self) -> Self:
        if self.x in (EPOCH, SECONDS, None):
            if self.y not in CURVES:
                raise ValueError(f"y: there is no quantity of an epoch '{self.y}'.{near(self.y, CURVES)}")
        else:
            check_measure(self.y)
        return self


class StudyFigure(_Section):
    """A figure of panels side by side."""

    name: str = Field(pattern=r"[a-z0-9_]+")
    """Name of its files."""
    title: str
    panels: list[Panel] = Field(min_length=1, max_length=3)
    caption: str = ""


class StudySettings(_Section):
    """A study."""

    title: str
    source: str
    """Author and year of the source."""
    shows: dict[str, str] = {}
    """Names of its tables and figures for `compare --study`, with the source's: `{thesis-table-4-2: Table 4.2}`."""
    about: str = ""
    """What was done there and what is done here."""
    minutes: float = Field(gt=0)
    """Expected time on two cores."""
    workload: str | OwnRowsSettings = "hlf"
    """What is trained: a network of the run folder, or images: `{name: mnist, network: lenet5}`, by default the digits
    of scikit-learn in their shape, or the public files in a `folder`; or a `surface` of two parameters."""
    execution: Literal["simulate", "mpi"] = "simulate"
    """Whether workers are simulated, in virtual time, or are MPI ranks of this machine."""
    cluster: dict[str, Any] = {}
    """The simulated cluster: the time of a step, and the network where it is not that of the thesis."""
    times_only: PositiveInt | None = None
    """Number of steps of each worker in an epoch of a study of times: nothing is learnt, so that it is fast; null: the
    workload is trained."""
    train: dict[str, Any] = {}
    """Values of `train` of all methods."""
    methods: dict[str, StudiedMethod] = Field(min_length=1)
    """The methods by name."""
    vary: dict[str, list[Any]] = {}
    """Values of keys such as `train.learning_rate` and `cluster.slow_ranks`: every combination is run."""
    best_of: list[str] = []
    """Varied keys for which each method is shown with its own best value, that of the lowest validation loss."""
    reference: str
    """Method that all others are compared with."""
    compared: list[MeasureName] = ["test_accuracy"]
    """Measures in which they are compared."""
    demonstration: str = ""
    """Why its data or times are too small to judge by, as with the digits of scikit-learn; empty if they are not."""
    seeds: PositiveInt = 3
    """Number of seeds: a seed sets initial weights, order of events, partners and computing times."""
    claims: list[Claim] = []
    tables: list[StudyTable] = []
    figures: list[StudyFigure] = []

    def train_settings(self, method: str, values: Mapping[str, Any], seed: int) -> TrainSettings:
        """Settings of a run, without what the machine asks for."""
        content = _varied("train", _merged(self.train, self.methods[method].train), values)
        return TrainSettings.model_validate({**content, "seed": seed})

    def cluster_settings(self, values: Mapping[str, Any]) -> ClusterSettings:
        """The simulated cluster of a run."""
        return ClusterSettings.model_validate(_varied("cluster", self.cluster, values))

    def combinations(self, method: str) -> Iterator[dict[str, Any]]:
        """The values of the varied keys of a method's runs."""
        chosen = self.methods[method]
        keys = [key for key in self.vary if key not in chosen.fixed and not _sets(chosen.train, key)]
        for values in itertools.product(*(self.values_of(method, key) for key in keys)):
            yield dict(zip(keys, values, strict=True))

    def values_of(self, method: str, key: str) -> list[Any]:
        """The values of a varied key for a method."""
        return self.methods[method].vary.get(key, self.vary[key])

    def title_of(self, method: str) -> str:
        """Name of a method in tables and figures."""
        if self.methods[method].title:
            return self.methods[method].title
        train = self.train_settings(method, next(self.combinations(method)), 1)
        name = train.traits.title
        if train.slowmo is None:
            return name
        return f"{name} + SlowMo{'' if train.slowmo_is_exact else ' no avg.'}"

    def replaces(self, method: str, key: str) -> bool:
        """Whether all runs of a method have another value of a key of `train`."""
        chosen = self.methods[method]
        is_varied = f"train.{key}" in self.vary and f"train.{key}" not in chosen.fixed
        return is_varied or (key in chosen.train and not isinstance(chosen.train[key], Mapping))

    @property
    def alone(self) -> str | None:
        """The first method that always runs on one worker: t(1) of speed-ups; None if there is none."""
        for method in self.methods:
            if all(self.train_settings(method, values, 1).workers == 1 for values in self.combinations(method)):
                return method
        return None

    @model_validator(mode="after")
    def _runs_are_possible(self) -> Self:
        own = (each.vary for each in self.methods.values())
        for key, given in (pair for vary in (self.vary, *own) for pair in vary.items()):
            section, _, rest = key.partition(".")
            if section not in _SECTIONS or not rest:
                raise ValueError(f"vary: '{key}' does not begin with {' or '.join(f'{name}.' for name in _SECTIONS)}")
            if not given:
                raise ValueError(f"vary: '{key}' has no values")
        for method in self.methods:
            for values in self.combinations(method):
                try:
                    workers = self.train_settings(method, values, 1).workers
                    slow = min(self.cluster_settings(values).slow_ranks, default=0)
                except ValidationError as cause:
                    where = ", ".join([f"methods.{method}", *(f"{key} {value}" for key, value in values.items())])
                    mistake = cause.errors()[0]
                    key = ".".join(map(str, mistake["loc"]))
                    raise ValueError(f"{where}: {key}: {mistake['msg']}.{_advice(mistake, cause.title)}") from None
                if slow >= workers > 1:
                    raise ValueError(f"methods.{method}: there is no slow rank {slow} among {workers} workers")
        return self

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        panels = [panel for figure in self.figures for panel in figure.panels]
        compared = [each for claim in self.claims for each in claim.chosen]
        named = [self.reference, *(name for panel in panels for name in panel.methods), *map(method_of, compared)]
        for name in [*named, *(name for table in self.tables for name in (*table.methods, *table.given))]:
            if name not in self.methods:
                raise ValueError(f"there is no method '{name}'.{near(name, self.methods)}")
        overs = [*(each.over for each in (*self.claims, *self.tables)), *(panel.x for panel in panels)]  # type: ignore[attr-defined]
        keys = [*self.best_of, *overs, *(key for each in self.methods.values() for key in (*each.fixed, *each.vary))]
        keys += [key for each in compared if isinstance(each, dict) for key in each if key != "method"]
        keys += [key for panel in panels for key in panel.where]
        keys += [key for claim in self.claims for key in claim.at]
        for key in keys:
            if key not in (*self.vary, EPOCH, SECONDS, None):
                raise ValueError(f"'{key}' is no varied key.{near(key, self.vary)}")
        for chosen in [*(each for each in compared if isinstance(each, dict)), *(panel.where for panel in panels)]:
            names = [chosen["method"]] if "method" in chosen else self.methods
            for key in chosen.keys() - {"method"}:
                if all(chosen[key] not in self.values_of(name, key) for name in names):
                    raise ValueError(f"{key}: {chosen[key]} is none of the values that are run")
        for claim in self.claims:
            if (set(claim.at) != set(self.best_of)) if claim.protocol == "equal settings" else claim.at:
                keys_of_best = ", ".join(self.best_of) or "none"
                raise ValueError(f"claim '{claim.says}': {claim.protocol} has other keys in `at` than {keys_of_best}")
        return self

    @model_validator(mode="after")
    def _set_keys_have_an_effect(self) -> Self:
        trains = {"train": self.train, **{f"methods.{name}.train": each.train for name, each in self.methods.items()}}
        idle = [f"{place}.{key}" for place, train in trains.items() for key in train if key in _SET_ELSEWHERE]
        own = (each.vary for each in self.methods.values())
        varied = [*self.vary, *(key for vary in own for key in vary)]
        idle += [f"vary: {key}" for key in varied if key.removeprefix("train.") in _SET_ELSEWHERE]
        if idle:
            raise ValueError(f"{', '.join(idle)}: no effect in a study, which takes it from the config, or has `seeds`")
        clusters = [key for key in varied if key.startswith("cluster.")]
        if clusters and self.execution == "mpi":
            raise ValueError(f"vary: {', '.join(clusters)} has no effect with execution: mpi; leave it out")
        return self

    @model_validator(mode="after")
    def _parts_suit_each_other(self) -> Self:
        if self.times_only is not None and (self.best_of or self.execution == "mpi"):
            raise ValueError("times_only needs execution: simulate, and has no best_of: nothing is learnt")
        return self


def _add_workloads() -> None:
    """A study may train workloads of plugins."""
    own = Annotated[_own_rows(), Field(discriminator="name")]  # type: ignore[valid-type]
    StudySettings.__pydantic_fields__["workload"].annotation = Union[str, own]  # type: ignore[assignment] # noqa: UP007
    StudySettings.model_rebuild(force=True)


when_loaded(_add_workloads)


def _advice(mistake: ErrorDetails, section: str) -> str:
    """The nearest name, if a name is wrong."""
    if mistake["type"] == "union_tag_invalid":
        context = mistake["ctx"]
        return near(context["tag"], re.findall(r"'([^']+)'", context["expected_tags"]))
    if mistake["type"] == "extra_forbidden":
        *place, key = map(str, mistake["loc"])
        owner = _SECTIONS["train" if section == "TrainSettings" else "cluster"]
        if place:
            owner = METHODS[place[-1]].settings if place[0] == "algorithm" else SlowMoSettings
        return near(key, owner.model_fields)
    return ""


def method_of(chosen: Chosen) -> str:
    """The name of a chosen method."""
    return chosen if isinstance(chosen, str) else str(chosen.get("method"))


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings with some values replaced; a section with another `name` replaces the section.

    Examples:
        >>> _merged({"a": {"name": "x", "b": 1}, "c": 2}, {"a": {"b": 3}})
        {'a': {'name': 'x', 'b': 3}, 'c': 2}
        >>> _merged({"a": {"name": "x", "b": 1}}, {"a": {"name": "y"}})
        {'a': {'name': 'y'}}
    """
    found = dict(base)
    for key, value in changes.items():
        old = found.get(key)
        if isinstance(value, Mapping) and isinstance(old, str) and "name" not in value:
            old = {"name": old}
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        is_same = both and value.get("name", old.get("name")) == old.get("name")  # type: ignore[union-attr]
        found[key] = _merged(old, value) if is_same else value  # type: ignore[arg-type]
    return found


def form_of(content: Mapping[str, Any], form: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a study's file in one of its `forms`, with some values replaced."""
    shared = {key: value for key, value in content.items() if key != "forms"}
    return _merged(_merged(shared, content.get("forms", {}).get(form) or {}), changes)


def _varied(section: str, content: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a section, with the values of those varied keys that are its."""
    for key, value in values.items():
        name, *parts = key.split(".")
        if name == section:
            for part in reversed(parts):
                value = {part: value}  # noqa: PLW2901 - wrapped once for each part of the key
            content = _merged(content, value)
    return content


def _sets(train: Mapping[str, Any], key: str) -> bool:
    """Whether a method sets a key such as `train.workers` itself."""
    found: Any = {"train": train}
    for part in key.split("."):
        if not (isinstance(found, Mapping) and part in found):
            return False
        found = found[part]
    return True
