"""A study as its YAML file describes it: workload, methods, seeds, claims, tables and figures."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveInt,
    SerializeAsAny,
    model_validator,
)

from hep_studies.cells import SITUATION
from hep_studies.measures import distance_to_best
from hep_studies.nested_values import has_key, merged, with_values
from hep_studies.simulator.cluster import ClusterSettings
from hep_studies.studied_workload import workload_settings
from hep_studies.study_names import check_names
from hep_studies.study_sections import (
    AddedValues,
    Claim,
    MeasureName,
    Section,
    Situations,
    StudiedMethod,
    StudyFigure,
    StudyTable,
    TrainValues,
    VariedValues,
)
from training.settings import TrainSettings
from training.workloads.registry import WorkloadSettings

#: The studies that come with the code, one YAML file each.
FOLDER: Final = Path(__file__).parent
#: Keys of a study that describe or judge its runs. A change of them needs no new runs.
PRESENTATION_KEYS: Final = (
    "title",
    "source",
    "shows",
    "about",
    "minutes",
    "demonstration",
    # Another limit of added values leaves the runs that are there.
    "extend",
    "claims",
    "tables",
    "figures",
)


def key_label(key: str) -> str:
    """Return the name of a varied key for tables and figures.

    Examples:
        >>> key_label("train.learning_rate")
        'learning rate'
    """
    return key.rpartition(".")[2].replace("_", " ")


class StudySettings(BaseModel):
    """A study."""

    model_config = Section.model_config

    title: str
    source: str
    """Author and year of the source."""
    shows: dict[str, str] = {}
    """Names of its tables and figures for `compare --study`, with the source's:
    `{thesis-table-4-2: Table 4.2}`."""
    about: str = ""
    """What the source did, and what this study does."""
    minutes: float = Field(gt=0)
    """Expected time on two cores."""
    workload: Annotated[
        str | SerializeAsAny[WorkloadSettings], BeforeValidator(workload_settings)
    ] = "hlf"
    """What is trained: a network of the run folder, by name; images, `{name: mnist, network:
    lenet5}`, by default the digits of scikit-learn in their shape, or the public files in a
    `folder`; or a `surface` of two parameters."""
    execution: Literal["simulate", "mpi"] = "simulate"
    """Whether workers are simulated, in virtual time, or are MPI ranks of this machine."""
    cluster: dict[str, Any] = {}
    """The simulated cluster: the time of a step, and the network where it is not the thesis'."""
    times_only: PositiveInt | None = None
    """Number of steps of each worker in an epoch of a study of times: nothing is learnt, so that it
    is fast; null: the workload is trained."""
    train: TrainValues = {}
    """Values of `train` of all methods."""
    methods: dict[str, StudiedMethod] = Field(min_length=1)
    """The methods by name."""
    situations: Situations = {}
    """Named values of several keys together: `{network: {slow: {cluster.latency_seconds: 1.0e-3}}}`
    makes `situation.network` a key that is varied over names such as `slow`."""
    vary: VariedValues = {}
    """Values of keys such as `train.learning_rate` and `cluster.slow_ranks`: every combination is
    run."""
    best_of: list[str] = []
    """Varied keys for which each method is shown at its best value: the one of the lowest
    validation loss, and for claims the one that is best in what is claimed."""
    extend: NonNegativeInt = 0
    """Number of values that may be added to either side of a sweep of `best_of`, until the best
    value of a method is inside it."""
    reference: str
    """Method that all other methods are compared with."""
    compared: list[MeasureName] = ["test_accuracy"]
    """Measures in which they are compared."""
    demonstration: str = ""
    """Why the data or times are too small to judge by, as with the digits of scikit-learn; empty if
    they are not."""
    seeds: PositiveInt = 3
    """Number of seeds: a seed sets initial weights, order of events, partners and computing
    times."""
    claims: list[Claim] = []
    tables: list[StudyTable] = []
    figures: list[StudyFigure] = []

    def train_settings(self, method: str, values: Mapping[str, Any], seed: int) -> TrainSettings:
        """Return the training settings of one run of a method.

        Later sources replace values of earlier ones: the study's `train`, that of the method, the
        values of the varied keys, the seed. Keys that depend on the machine have their defaults.
        """
        train = merged(self.train, self.methods[method].train)
        train_values = with_values({"train": train}, self._set_values(values))["train"]
        return TrainSettings.model_validate({**train_values, "seed": seed})

    def first_settings(self, method: str) -> TrainSettings:
        """Return the settings of the first run of a method."""
        return self.train_settings(method, next(self.combinations(method)), 1)

    def cluster_settings(self, values: Mapping[str, Any]) -> ClusterSettings:
        """Return the simulated cluster of a run: the study's, with the values of varied keys."""
        cluster = with_values({"cluster": self.cluster}, self._set_values(values))["cluster"]
        return ClusterSettings.model_validate(cluster)

    def _set_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return values by dotted key, in which each situation is replaced by what it sets."""
        set_values: dict[str, Any] = {}
        for key, value in values.items():
            if key.startswith(SITUATION):
                set_values |= self.situations[key.removeprefix(SITUATION)][value]
            else:
                set_values[key] = value
        return set_values

    def combinations(self, method: str) -> Iterator[dict[str, Any]]:
        """Yield every combination of values of the keys that a method varies, for one seed.

        A combination is a mapping from dotted keys, such as `train.workers`, to values. A method
        that varies nothing has one, empty combination.
        """
        varied = {}
        for key in self.vary:
            values = self.values_of(method, key)
            if values:
                varied[key] = values
        for combination in itertools.product(*varied.values()):
            yield dict(zip(varied, combination, strict=True))

    def values_of(self, method: str, key: str) -> list[Any]:
        """Return the values of a varied key for a method; none if the method does not vary it.

        A method does not vary keys that it lists in `fixed` or sets itself. Values of its own
        `vary` replace those of the study.
        """
        settings = self.methods[method]
        if key in settings.fixed or has_key({"train": settings.train}, key):
            return []
        return settings.vary.get(key, self.vary[key])

    def all_values_of(self, key: str) -> list[Any]:
        """Return the values of a varied key for any method, each once; the study's come first."""
        values = list(self.vary[key])
        for method in self.methods:
            values += [value for value in self.values_of(method, key) if value not in values]
        return values

    def with_added(self, added: AddedValues) -> Self:
        """Return the study with further values of varied keys, in ascending order with its own.

        Methods and keys that the study does not have are ignored.
        """
        methods = dict(self.methods)
        for method, values_by_key in added.items():
            if method not in methods:
                continue
            vary = dict(methods[method].vary)
            for key, values in values_by_key.items():
                if key in self.vary:
                    vary[key] = sorted([*self.values_of(method, key), *values])
            methods[method] = methods[method].model_copy(update={"vary": vary})
        return self.model_copy(update={"methods": methods})

    def title_of(self, method: str) -> str:
        """Return the name of a method in tables and figures.

        It is the title that the study gives, else the name of the algorithm, with a note if its
        slow momentum (SlowMo) is on.
        """
        if self.methods[method].title:
            return self.methods[method].title
        settings = self.first_settings(method)
        name = settings.traits.title
        if settings.slowmo is None:
            return name
        return f"{name} + SlowMo" if settings.slowmo_is_exact else f"{name} + SlowMo no avg."

    def replaces(self, method: str, key: str) -> bool:
        """Tell whether a method replaces the study's value of a key of `train` in all its runs.

        A change of the study's value has no effect on such a method. The method varies the key, or
        sets it itself.
        """
        method_values = self.methods[method].train
        is_varied = f"train.{key}" in next(self.combinations(method))
        # A section of the method is merged with that of the study, and does not replace all of it.
        is_section = isinstance(method_values.get(key, {}), Mapping)
        return is_varied or not is_section

    @property
    def single_worker(self) -> str | None:
        """First method whose runs all have one worker; None without one.

        Its time is t(1) in the speed-up t(1) / t(n) of the other methods.
        """
        for method in self.methods:
            settings = [
                self.train_settings(method, values, 1) for values in self.combinations(method)
            ]
            if all(run.workers == 1 for run in settings):
                return method
        return None

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        """Require that the study has all methods, varied keys and values that its parts name.

        Claims must also have the keys in `at` that their protocol needs.
        """
        check_names(self)
        for claim in self.claims:
            for row in claim.rows():
                self._check_protocol(row)
                self._check_goal(row)
        return self

    def _check_protocol(self, claim: Claim) -> None:
        """Require that a claim treats the keys of `best_of` as its protocol says.

        With equal settings, `at` gives a value to each of them; with each method at its best, to
        none, since the lowest validation loss decides. The selected runs name none of them.
        """
        selected_keys = {key for runs in (claim.treatment, *claim.control) for key in runs}
        best_keys = selected_keys & set(self.best_of)
        if best_keys:
            raise ValueError(
                f"claim '{claim.says}': {min(best_keys)} is at its best, or as `at` says"
            )
        expected = set(self.best_of) if claim.protocol == "equal settings" else set()
        if set(claim.at) != expected:
            names = ", ".join(self.best_of) or "none"
            raise ValueError(
                f"claim '{claim.says}': {claim.protocol} has other keys in `at` than {names}"
            )

    def _check_goal(self, claim: Claim) -> None:
        """Require that methods with a common goal vary the same keys: they give the situation."""
        if distance_to_best(claim.measure) is None:
            return
        treated_keys = set(next(self.combinations(claim.treatment["method"])))
        for selection in claim.control:
            keys = set(next(self.combinations(selection["method"])))
            if keys != treated_keys:
                raise ValueError(
                    f"claim '{claim.says}': {claim.measure} compares methods that vary the same "
                    f"keys; {', '.join(sorted(keys ^ treated_keys))} is varied by one of them only"
                )

    @model_validator(mode="after")
    def _check_execution(self) -> Self:
        """Refuse keys that have no effect with the execution, simulated or on MPI ranks."""
        is_simulated = self.execution == "simulate"
        if self.times_only is not None and (self.best_of or not is_simulated):
            raise ValueError(
                "times_only needs execution: simulate, and has no best_of: nothing is learnt"
            )
        varied_keys = list(self.vary)
        for named_values in self.situations.values():
            for values in named_values.values():
                varied_keys += values
        cluster_keys = [key for key in varied_keys if key.startswith("cluster.")]
        if cluster_keys and not is_simulated:
            raise ValueError(
                f"vary: {', '.join(cluster_keys)} has no effect with execution: mpi; leave it out"
            )
        return self
