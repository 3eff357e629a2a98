"""What a study's YAML file says: workload, methods, seeds, claims of the source, tables and figures."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveInt,
    SerializeAsAny,
    model_validator,
)

from hep_core.plugins import name_validator
from hep_studies.measures import CURVES, measure_of
from hep_studies.simulator.cluster import ClusterSettings
from hep_studies.workloads import images_settings, surface_settings  # noqa: F401 - register themselves
from training.settings import TrainSettings
from training.workloads.registry import WORKLOADS, WorkloadSettings

#: The studies that come with the code, one YAML file each.
FOLDER: Final = Path(__file__).parent
#: Keys of a study that say what to make of its runs, not which there are.
WORDS: Final = (
    "title",
    "source",
    "shows",
    "about",
    "minutes",
    "demonstration",
    "claims",
    "tables",
    "figures",
)
#: The comparisons of a claim.
_KINDS: Final = ("better", "equivalent", "flat", "grows")
#: Keys of `train` that a study takes from the config: how this machine starts ranks.
OF_MACHINE: Final = frozenset(
    {"device", "launcher", "launcher_args", "max_restarts", "stall_seconds", "threads"}
)
#: Keys of `train` that a study does not take from its own file: those, and what it sets for all runs.
_SET_ELSEWHERE: Final = OF_MACHINE | {"reader", "seed", "seeds", "tensorboard"}
#: What an epoch's quantity is drawn against.
EPOCH: Final = "epoch"
SECONDS: Final = "seconds"


def _with_effect(given: dict[str, Any]) -> dict[str, Any]:
    idle = [key for key in given if key.removeprefix("train.") in _SET_ELSEWHERE]
    if idle:
        raise ValueError(
            f"{', '.join(idle)}: no effect in a study, which takes it from the config, or has `seeds`"
        )
    return given


def _of_a_section(vary: dict[str, list[Any]]) -> dict[str, list[Any]]:
    for key, values in vary.items():
        if not key.startswith(("train.", "cluster.")) or not values:
            raise ValueError(f"'{key}' does not begin with train. or cluster., or has no values")
    return {key: _distinct(values) for key, values in vary.items()}


def _distinct(values: Sequence[Any]) -> list[Any]:
    """Each value once; they may be lists or mappings."""
    return [value for number, value in enumerate(values) if value not in values[:number]]


def opened_kind(given: Any) -> Any:
    """The settings of a workload with rows of its own, of us or of a plugin; the name of a network as it is."""
    if not isinstance(given, Mapping):
        return given
    kinds = {name: kind for name, kind in WORKLOADS.items() if name != "hep"}
    return kinds[name_validator(kinds, "workload")(str(given.get("name")))].model_validate(given)


def as_in_json(value: Any) -> Any:
    """A value as `result.json` gives it back: keys of mappings are text.

    Examples:
        >>> as_in_json({"cluster.slow_ranks": [{0: 5.0}]})
        {'cluster.slow_ranks': [{'0': 5.0}]}
    """
    return json.loads(json.dumps(value, default=str))


#: Runs of a study: `{method: easgd, train.workers: 4}`, a method and values of varied keys, or the method's name alone.
Chosen = Annotated[
    dict[str, Any],
    BeforeValidator(lambda given: {"method": given} if isinstance(given, str) else dict(given)),
    AfterValidator(as_in_json),
]
#: Values of varied keys, each one of those that are run.
KeyValues = Annotated[dict[str, Any], AfterValidator(as_in_json)]
MeasureName = Annotated[str, AfterValidator(lambda name: measure_of(name) and name)]
Positive = Annotated[float, Field(gt=0)]
Train = Annotated[dict[str, Any], AfterValidator(_with_effect)]
Vary = Annotated[
    dict[str, list[Any]],
    AfterValidator(as_in_json),
    AfterValidator(_of_a_section),
    AfterValidator(_with_effect),
]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class StudiedMethod(_Section):
    """A method of a study: its settings of the training."""

    title: str = ""
    """Name in tables and figures; empty for that of the algorithm, with its slow momentum."""
    train: Train
    """Values of `train` that differ from those of the study."""
    fixed: list[str] = []
    """Varied keys that this method does not have; nor does it vary those that it sets itself."""
    vary: Vary = {}
    """Its own values of varied keys, instead of those of the study: learning rates around its best one."""


class Claim(_Section):
    """A sentence of the source, and the comparison that judges it; `docs/comparison.md` says what each key means."""

    says: str
    place: str = ""
    name: str = ""
    """By which pages quote its numbers."""
    topic: str = ""
    better: Chosen | None = None
    equivalent: Chosen | None = None
    flat: Chosen | None = None
    grows: Chosen | None = None
    than: Annotated[
        list[Chosen], BeforeValidator(lambda value: value if isinstance(value, list) else [value])
    ] = []
    over: str | None = None
    protocol: Literal["equal settings", "each at its best"] = "equal settings"
    at: KeyValues = {}
    measure: MeasureName = "test_accuracy"
    size: Positive | None = None
    margin: Positive | None = None
    because: str = ""
    share_of_cells: Annotated[float, Field(gt=0, le=1)] = 1.0
    seeds: PositiveInt | None = None
    not_decidable: str = ""
    withdrawn: str = ""

    @property
    def kind(self) -> str:
        """The comparison: `better`, `equivalent`, `flat` or `grows`."""
        return next(name for name in _KINDS if getattr(self, name) is not None)

    @property
    def is_of_equals(self) -> bool:
        """Whether it says that two are the same."""
        return self.kind in ("equivalent", "flat")

    @property
    def least(self) -> float:
        """The difference that counts as none: its own margin or that of the measure."""
        return measure_of(self.measure).margin if self.margin is None else self.margin

    @property
    def this(self) -> Chosen:
        """What is compared."""
        chosen: Chosen = getattr(self, self.kind)
        return chosen

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if sum(getattr(self, name) is not None for name in _KINDS) != 1:
            raise ValueError(f"a claim needs exactly one of {', '.join(_KINDS)}")
        if (self.kind in ("better", "equivalent")) != bool(self.than) or bool(self.than) == (
            self.over is not None
        ):
            raise ValueError("better and equivalent need `than`; flat and grows need `over`")
        if self.size is not None and self.is_of_equals:
            raise ValueError(
                f"size has no effect on {self.kind}; the `margin` says what counts as none"
            )
        if (self.margin is None) != (not self.because):
            raise ValueError("a margin needs `because`, its reason, and the reason a margin")
        return self


class StudyTable(_Section):
    """A table: a row for each method, a column for each measure, or for each value of a varied key."""

    title: str
    measures: list[MeasureName] = Field(min_length=1)
    """The columns."""
    over: str | None = None
    """A varied key: each measure has a column for each value of it."""
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
    where: KeyValues = {}
    """Values of varied keys: a method that varies such a key is shown at this value only."""
    title: str = ""
    """Words in the panel."""
    log: list[Literal["x", "y"]] = []
    """The logarithmic axes."""

    @model_validator(mode="after")
    def _quantity_exists(self) -> Self:
        if self.x in (EPOCH, SECONDS, None):
            name_validator(CURVES, "quantity of an epoch")(self.y)
        else:
            measure_of(self.y)
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
    workload: Annotated[str | SerializeAsAny[WorkloadSettings], BeforeValidator(opened_kind)] = (
        "hlf"
    )
    """What is trained: a network of the run folder, or images: `{name: mnist, network: lenet5}`, by default the digits
    of scikit-learn in their shape, or the public files in a `folder`; or a `surface` of two parameters."""
    execution: Literal["simulate", "mpi"] = "simulate"
    """Whether workers are simulated, in virtual time, or are MPI ranks of this machine."""
    cluster: dict[str, Any] = {}
    """The simulated cluster: the time of a step, and the network where it is not that of the thesis."""
    times_only: PositiveInt | None = None
    """Number of steps of each worker in an epoch of a study of times: nothing is learnt, so that it is fast; null: the
    workload is trained."""
    train: Train = {}
    """Values of `train` of all methods."""
    methods: dict[str, StudiedMethod] = Field(min_length=1)
    """The methods by name."""
    vary: Vary = {}
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
        content = {"train": _merged(self.train, self.methods[method].train)}
        return TrainSettings.model_validate({**_varied(content, values)["train"], "seed": seed})

    def cluster_settings(self, values: Mapping[str, Any]) -> ClusterSettings:
        """The simulated cluster of a run."""
        return ClusterSettings.model_validate(_varied({"cluster": self.cluster}, values)["cluster"])

    def combinations(self, method: str) -> Iterator[dict[str, Any]]:
        """The values of the varied keys of a method's runs."""
        varied = {key: values for key in self.vary if (values := self.values_of(method, key))}
        for chosen in itertools.product(*varied.values()):
            yield dict(zip(varied, chosen, strict=True))

    def values_of(self, method: str, key: str) -> list[Any]:
        """The values of a varied key for a method; none if it sets the key itself, or does not have it."""
        chosen = self.methods[method]
        is_fixed = key in chosen.fixed or _sets(chosen.train, key)
        return [] if is_fixed else chosen.vary.get(key, self.vary[key])

    def all_values_of(self, key: str) -> list[Any]:
        """The values of a varied key for any method, each once."""
        found = list(self.vary[key])
        for method in self.methods:
            found += [value for value in self.values_of(method, key) if value not in found]
        return found

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
        own = self.methods[method].train
        return f"train.{key}" in next(self.combinations(method)) or not isinstance(
            own.get(key, {}), Mapping
        )

    @property
    def alone(self) -> str | None:
        """The first method that always runs on one worker: t(1) of speed-ups; None if there is none."""
        for method in self.methods:
            if {
                self.train_settings(method, values, 1).workers
                for values in self.combinations(method)
            } == {1}:
                return method
        return None

    @model_validator(mode="after")
    def _names_exist(self) -> Self:
        panels = [panel for figure in self.figures for panel in figure.panels]
        chosen = [each for claim in self.claims for each in (claim.this, *claim.than)]
        named = [self.reference, *(str(each.get("method")) for each in chosen)]
        named += [name for panel in panels for name in panel.methods]
        for name in [
            *named,
            *(name for table in self.tables for name in (*table.methods, *table.given)),
        ]:
            name_validator(self.methods, "method")(name)
        chosen += [panel.where for panel in panels]
        keys: list[str | None] = [
            *(claim.over for claim in self.claims),
            *(table.over for table in self.tables),
        ]
        keys += [key for each in self.methods.values() for key in (*each.fixed, *each.vary)]
        keys += [
            key
            for each in (*chosen, *(claim.at for claim in self.claims))
            for key in each
            if key != "method"
        ]
        for key in (*keys, *self.best_of, *(panel.x for panel in panels)):
            if key not in (EPOCH, SECONDS, None):
                name_validator(self.vary, "varied key")(key)
        for each in chosen:
            names = [each["method"]] if "method" in each else self.methods
            for key in each.keys() - {"method"}:
                if all(each[key] not in self.values_of(name, key) for name in names):
                    raise ValueError(f"{key}: {each[key]} is none of the values that are run")
        for claim in self.claims:
            if best := {key for each in (claim.this, *claim.than) for key in each} & {
                *self.best_of
            }:
                raise ValueError(
                    f"claim '{claim.says}': {min(best)} is at its best, or as `at` says"
                )
            if (
                (set(claim.at) != set(self.best_of))
                if claim.protocol == "equal settings"
                else claim.at
            ):
                keys_of_best = ", ".join(self.best_of) or "none"
                raise ValueError(
                    f"claim '{claim.says}': {claim.protocol} has other keys in `at` than {keys_of_best}"
                )
        return self

    @model_validator(mode="after")
    def _parts_suit_each_other(self) -> Self:
        if self.times_only is not None and (self.best_of or self.execution == "mpi"):
            raise ValueError(
                "times_only needs execution: simulate, and has no best_of: nothing is learnt"
            )
        clusters = [key for key in self.vary if key.startswith("cluster.")]
        if clusters and self.execution == "mpi":
            raise ValueError(
                f"vary: {', '.join(clusters)} has no effect with execution: mpi; leave it out"
            )
        return self


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


def short(key: str) -> str:
    """A varied key in words."""
    return key.rpartition(".")[2].replace("_", " ")


def _varied(sections: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Sections with the values of varied keys."""
    for key, value in values.items():
        for part in reversed(key.split(".")):
            value = {part: value}  # noqa: PLW2901 - wrapped once for each part of the key
        sections = _merged(sections, value)
    return sections


def _sets(train: Mapping[str, Any], key: str) -> bool:
    """Whether a method sets a key such as `train.workers` itself."""
    found: Any = {"train": train}
    for part in key.split("."):
        if not (isinstance(found, Mapping) and part in found):
            return False
        found = found[part]
    return True
