"""Sections of a study's YAML file: methods, claims of the source, tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Self

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

from hep_core.plugins import name_validator
from hep_studies.cells import SITUATION
from hep_studies.measures import CURVES, measure_of
from hep_studies.nested_values import as_json
from hep_studies.tuning import Tuning

#: Keys of `train` that a study takes from the config: how this machine starts ranks.
MACHINE_KEYS: Final = frozenset(
    {"device", "launcher", "launcher_args", "max_restarts", "stall_seconds", "threads"}
)
#: Keys of `train` that a study does not take from its own file: those, and what it sets itself.
_KEYS_SET_ELSEWHERE: Final = MACHINE_KEYS | {"reader", "seed", "seeds", "tensorboard"}
#: Quantities that an epoch's quantity is drawn against.
EPOCH: Final = "epoch"
SECONDS: Final = "seconds"
#: The comparisons of a claim: of two methods, and of the values of a key.
_OF_METHODS: Final = ("better", "equivalent")
_OF_VALUES: Final = ("flat", "grows")


def _check_keys_have_effect(values: dict[str, Any]) -> dict[str, Any]:
    """Return values of `train` by key; refuse keys that a study does not take from its own file.

    Keys may begin with `train.`.
    """
    idle = [key for key in values if key.removeprefix("train.") in _KEYS_SET_ELSEWHERE]
    if idle:
        raise ValueError(
            f"{', '.join(idle)}: no effect in a study, which takes it from the config, or has "
            f"`seeds`"
        )
    return values


def _distinct_values(vary: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return the values of varied keys, each once; refuse keys of sections that nobody varies."""
    for key, values in vary.items():
        if not key.startswith(("train.", "cluster.", SITUATION)) or not values:
            raise ValueError(
                f"'{key}' does not begin with train., cluster. or {SITUATION}, or has no values"
            )
    return {key: _without_repetition(values) for key, values in vary.items()}


def _check_situations(
    situations: dict[str, dict[str, dict[str, Any]]],
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return situations; refuse one that sets a key of another section, or one without effect."""
    for name, named_values in situations.items():
        for situation, values in named_values.items():
            for key in values:
                if not key.startswith(("train.", "cluster.")):
                    raise ValueError(
                        f"{name}, {situation}: '{key}' does not begin with train. or cluster."
                    )
            _check_keys_have_effect(values)
    return situations


def _without_repetition(values: Sequence[Any]) -> list[Any]:
    """Return each value once; values may be lists or mappings, which have no hash."""
    distinct: list[Any] = []
    for value in values:
        if value not in distinct:
            distinct.append(value)
    return distinct


def _as_selection(selection: Any) -> dict[str, Any]:
    """Return a selection of runs as a mapping; the name of a method alone is short for its runs."""
    return {"method": selection} if isinstance(selection, str) else dict(selection)


def _as_list(selections: Any) -> list[Any]:
    return selections if isinstance(selections, list) else [selections]


def _check_measure(name: str) -> str:
    """Return the name of a measure; refuse one that does not exist."""
    measure_of(name)
    return name


#: Runs of a study: `{method: easgd, train.workers: 4}`, a method and values of varied keys. The
#: name of the method alone is short for its runs at all values.
Selection = Annotated[dict[str, Any], BeforeValidator(_as_selection), AfterValidator(as_json)]
#: Whether two methods are compared with the same settings, or each with its own best ones.
Protocol = Literal["equal settings", "each at its best"]
#: Values of varied keys; a study runs each of them.
KeyValues = Annotated[dict[str, Any], AfterValidator(as_json)]
MeasureName = Annotated[str, AfterValidator(_check_measure)]
Positive = Annotated[float, Field(gt=0)]
TrainValues = Annotated[dict[str, Any], AfterValidator(_check_keys_have_effect)]
VariedValues = Annotated[
    dict[str, list[Any]],
    AfterValidator(as_json),
    AfterValidator(_distinct_values),
    AfterValidator(_check_keys_have_effect),
]
#: Values that keys have together, by the name of the situation; such names by that of a varied key.
Situations = Annotated[
    dict[str, dict[str, dict[str, Any]]],
    AfterValidator(as_json),
    AfterValidator(_check_situations),
]
#: Values that are added to the sweep of a key, by method and key.
AddedValues = dict[str, dict[str, list[Any]]]


class Section(BaseModel):
    """A section of the file: unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class StudiedMethod(Section):
    """A method of a study: its settings of the training."""

    title: str = ""
    """Name in tables and figures; empty: the algorithm's name, with its slow momentum."""
    train: TrainValues
    """Values of `train` that differ from those of the study."""
    fixed: list[str] = []
    """Varied keys that this method does not have. It does not vary those that it sets either."""
    vary: VariedValues = {}
    """The method's values of varied keys, instead of those of the study."""


class OtherProtocol(Section):
    """A further row of a claim: the same sentence, judged by another protocol or another measure.

    It stands beside the verdict on the source's own claim, and never replaces it.
    `docs/comparison.md` explains the keys.
    """

    name: str = ""
    """Name by which pages quote the numbers of the row."""
    protocol: Protocol | None = None
    """By default that of the claim; so with `measure`, and with `at` for equal settings."""
    at: KeyValues | None = None
    measure: MeasureName | None = None
    tuned_by: MeasureName | None = None
    size: Positive | None = None
    """A size of the source is of its own measure and protocol, and is not taken over."""
    margin: Positive | None = None
    because: str = ""
    """Margin and reason are those of the claim for the same measure, unless the row has its own."""
    seeds: PositiveInt | None = None
    not_decidable: str = ""


class Claim(Section):
    """A sentence of the source and the comparison that judges it.

    Protocol and measure are those of the source. `docs/comparison.md` explains the keys.
    """

    says: str
    place: str = ""
    name: str = ""
    """Name by which pages quote the numbers of the claim."""
    topic: str = ""
    better: Selection | None = None
    equivalent: Selection | None = None
    flat: Selection | None = None
    grows: Selection | None = None
    control: Annotated[list[Selection], BeforeValidator(_as_list)] = []
    over: str | None = None
    protocol: Protocol
    at: KeyValues = {}
    measure: MeasureName
    tuned_by: MeasureName | None = None
    """The measure in which "each at its best" is best; null: that of the claimed measure."""
    size: Positive | None = None
    size_is: Literal["at least", "about"] = "at least"
    """Whether the source states a least size, or an amount such as "twice" or "slightly"."""
    margin: Positive | None = None
    because: str = ""
    share_of_cells: Annotated[float, Field(gt=0, le=1)] = 1.0
    seeds: PositiveInt | None = None
    not_decidable: str = ""
    withdrawn: str = ""
    also: list[OtherProtocol] = []
    """Further rows: the same sentence at other protocols or in other measures."""

    @model_validator(mode="before")
    @classmethod
    def _accept_old_key(cls, keys: Any) -> Any:
        """Read `than`, the name of `control` in earlier versions."""
        if not isinstance(keys, Mapping) or "than" not in keys:
            return keys
        if "control" in keys:
            raise ValueError("`than` is the old name of `control`; leave it out")
        renamed = {key: value for key, value in keys.items() if key != "than"}
        return renamed | {"control": keys["than"]}

    @property
    def comparison(self) -> str:
        """The comparison: `better`, `equivalent`, `flat` or `grows`."""
        return next(iter(self._selections))

    @property
    def treatment(self) -> Selection:
        """The runs that are compared with the control, or over a key."""
        return next(iter(self._selections.values()))

    @property
    def _selections(self) -> dict[str, Selection]:
        """The selection of each comparison that the claim has: exactly one."""
        selections = {name: getattr(self, name) for name in (*_OF_METHODS, *_OF_VALUES)}
        return {name: value for name, value in selections.items() if value is not None}

    def rows(self) -> list[Claim]:
        """Return the claim, and after it the rows of `also` as claims of their own.

        A row has the sentence and the comparison of the claim, and what it does not set itself.
        """
        return [self, *(self._further_row(further) for further in self.also)]

    def _further_row(self, further: OtherProtocol) -> Claim:
        """Return one row of `also` as a claim."""
        protocol = further.protocol or self.protocol
        measure = further.measure or self.measure
        at = further.at
        if at is None:
            at = self.at if protocol == "equal settings" else {}
        margin, because = further.margin, further.because
        if margin is None and measure == self.measure:
            margin, because = self.margin, self.because
        # The new claim is checked as if it stood in the file.
        row = self.model_dump(exclude={"also", "size_is"}) | {
            "name": further.name,
            "protocol": protocol,
            "at": at,
            "measure": measure,
            "tuned_by": further.tuned_by,
            "size": further.size,
            "margin": margin,
            "because": because,
            "seeds": further.seeds or self.seeds,
            "not_decidable": further.not_decidable,
        }
        return Claim.model_validate(row)

    @property
    def tuning(self) -> Tuning:
        """How the values of the keys of `best_of` are chosen."""
        return Tuning(self.at, self.tuned_by or measure_of(self.measure).tuned_by)

    @property
    def is_equivalence(self) -> bool:
        """Whether the claim says that two are the same."""
        return self.comparison in ("equivalent", "flat")

    @property
    def equivalence_margin(self) -> float:
        """Largest difference that counts as none: the claim's margin or that of its measure."""
        return measure_of(self.measure).margin if self.margin is None else self.margin

    @model_validator(mode="after")
    def _check_completeness(self) -> Self:
        """Require exactly one comparison, what it compares with, and a reason for a margin."""
        if len(self._selections) != 1:
            names = ", ".join((*_OF_METHODS, *_OF_VALUES))
            raise ValueError(f"a claim needs exactly one of {names}")
        needs_control = self.comparison in _OF_METHODS
        has_control = bool(self.control)
        has_key = self.over is not None
        if has_control != needs_control or has_key == needs_control:
            raise ValueError("better and equivalent need `control`; flat and grows need `over`")
        if self.size is not None and self.is_equivalence:
            raise ValueError(
                f"size has no effect on {self.comparison}; the `margin` says what counts as none"
            )
        if self.size is None and self.size_is == "about":
            raise ValueError("size_is has no effect without a `size`")
        if self.share_of_cells < 1 and self.comparison != "better":
            raise ValueError(f"share_of_cells has no effect on {self.comparison}, only on better")
        if (self.margin is None) != (not self.because):
            raise ValueError("a margin needs `because`, its reason, and the reason a margin")
        if self.tuned_by is not None and self.protocol == "equal settings":
            raise ValueError("tuned_by has no effect with equal settings, where `at` decides")
        if self.tuned_by is not None and measure_of(self.tuned_by).relative_to:
            raise ValueError(
                f"tuned_by: {self.tuned_by} compares with another method; name a measure of the "
                f"method alone"
            )
        try:
            self.rows()
        except ValidationError as mistake:
            raise ValueError(f"also: {mistake.errors()[0]['msg']}") from None
        return self


class StudyTable(Section):
    """A table: a row for each method, a column for each measure, or for each value of a key."""

    title: str
    measures: list[MeasureName] = Field(min_length=1)
    """The columns."""
    over: str | None = None
    """A varied key: each measure has a column for each value of the key."""
    methods: list[str] = []
    """The rows; empty for all methods."""
    given: dict[str, str] = {}
    """The numbers of the source by method, in a further column."""


class Panel(Section):
    """A panel of a figure.

    It shows an epoch's quantity against epochs or time, or as boxes; or a measure against a key.
    """

    y: str
    """Quantity of an epoch, or measure."""
    x: str | None = None
    """`epoch`, `seconds` or a varied key; null for boxes over all epochs and seeds."""
    methods: list[str] = []
    """The methods; empty for all."""
    where: KeyValues = {}
    """Values of varied keys: a method that varies such a key is shown at this value only."""
    title: str = ""
    """Text in the panel."""
    log: list[Literal["x", "y"]] = []
    """The logarithmic axes."""

    @model_validator(mode="after")
    def _check_quantity(self) -> Self:
        """Require that y is a quantity of an epoch, or a measure where x is a varied key."""
        if self.x in (EPOCH, SECONDS, None):
            name_validator(CURVES, "quantity of an epoch")(self.y)
        else:
            measure_of(self.y)
        return self


class StudyFigure(Section):
    """A figure of panels side by side."""

    name: str = Field(pattern=r"[a-z0-9_]+")
    """Name of its files."""
    title: str
    panels: list[Panel] = Field(min_length=1, max_length=3)
    caption: str = ""
