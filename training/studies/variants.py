"""The variants of a comparison: the columns of the thesis' tables, and the training settings of each variant."""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

from training.algorithms import registry
from training.settings import TrainSettings
from training.studies.settings import CompareSettings

#: Keys that a comparison takes from the section `train`, the same for every method.
_SHARED: Final = frozenset(
    {
        "optimizer", "learning_rate", "scale_learning_rate", "schedule", "momentum", "nesterov", "weight_decay",
        "precision", "device", "launcher", "launcher_args", "max_restarts",
        "stall_seconds",
    }
)  # fmt: skip
#: Keys of `train.algorithm` that a comparison takes over for all methods that have them.
_SHARED_BY_METHODS: Final = frozenset({"exchange", "network", "overlap"})
#: More local steps than an epoch has.
_NEVER: Final = 10**9


class TableColumn(StrEnum):
    """The columns of the tables: the kind of slow momentum around a method."""

    BASELINE = "baseline"
    SLOWMO = "SlowMo"
    NO_AVERAGE = "SlowMo no avg."


#: Sequential training: one worker alone.
ALONE: Final = "sgd"
#: The method of the timing runs whose workers compute apart.
APART: Final = "local-sgd"
_OF_PAIRS: Final = ("ad-psgd", "swarm-sgd")
#: The methods in the order of rows and colours.
METHODS: Final = ("ar-sgd", *_OF_PAIRS)
#: The same with sequential SGD.
ALL_METHODS: Final = (ALONE, *METHODS)


def title_of(method: str) -> str:
    """The name of a method in tables and figures."""
    return registry.METHODS[method].traits.title


class Variant(NamedTuple):
    """A cell of the tables: a method with or without slow momentum.

    Examples:
        >>> Variant("ad-psgd", TableColumn.NO_AVERAGE).key
        'ad-psgd-slowmo-no-avg'
        >>> Variant("ad-psgd", TableColumn.NO_AVERAGE).title
        'AD-PSGD + SlowMo no avg.'
    """

    algorithm: str
    column: TableColumn

    @property
    def key(self) -> str:
        """Name of the variant on disk."""
        endings = {TableColumn.BASELINE: "", TableColumn.SLOWMO: "-slowmo", TableColumn.NO_AVERAGE: "-slowmo-no-avg"}
        return f"{self.algorithm}{endings[self.column]}"

    @property
    def title(self) -> str:
        """Name of the variant in words."""
        name = title_of(self.algorithm)
        return name if self.column is TableColumn.BASELINE else f"{name} + {self.column}"

    @classmethod
    def of(cls, key: str) -> Variant:
        """The variant with this key."""
        return {variant.key: variant for variant in ALL_VARIANTS}[key]

    @property
    def plain(self) -> Variant:
        """The same method without slow momentum."""
        return Variant(self.algorithm, TableColumn.BASELINE)


REFERENCE: Final = Variant(METHODS[0], TableColumn.BASELINE)
#: The columns of the thesis' tables 4.2 and 4.3, and two controls that they lack: SGD on one worker, and slow momentum
#: without gossip. AR-SGD comes first: the others are compared with it.
ALL_VARIANTS: Final = (
    REFERENCE,
    Variant(ALONE, TableColumn.BASELINE),
    Variant(METHODS[0], TableColumn.SLOWMO),
    *(Variant(method, column) for method in _OF_PAIRS for column in TableColumn),
)
#: The variants of figures 4.8 and 4.10.
BEST: Final = (
    REFERENCE,
    *(Variant(method, TableColumn.NO_AVERAGE) for method in _OF_PAIRS),
)
PLAIN: Final = tuple(Variant(method, TableColumn.BASELINE) for method in METHODS)
COMPARISONS: Final[dict[str, tuple[Variant, ...]]] = {"thesis": ALL_VARIANTS}


def train_settings(
    base: TrainSettings,
    settings: CompareSettings,
    variant: Variant,
    *,
    epochs: int,
    seed: int,
    rate_factor: float = 1.0,
) -> TrainSettings:
    """Training settings of one run: the common ones from `train`, the others from the comparison.

    For every `train`, pyarrow reads the events and keeps them in memory: the batches are the same, and the measured
    times do not include reading.
    """
    shared = base.model_dump(mode="json", include=set(_SHARED))
    given = base.algorithm.model_dump(mode="json", include=set(_SHARED_BY_METHODS), exclude_unset=True)
    keys = {**given, "local_steps": settings.local_steps}
    known = registry.METHODS[variant.algorithm].settings.model_fields
    slowmo = None
    if variant.column is not TableColumn.BASELINE:
        exact = variant.column is TableColumn.SLOWMO
        slowmo = {"tau": settings.tau, "beta": settings.beta, "alpha": 1.0, "exact_average": exact}
    return TrainSettings.model_validate(
        {
            **shared,
            "algorithm": {"name": variant.algorithm, **{key: keys[key] for key in keys if key in known}},
            "workers": 1 if variant.algorithm == ALONE else settings.workers,
            "learning_rate": base.learning_rate * rate_factor,
            "epochs": epochs,
            "batch_size": settings.batch_size,
            "seed": seed,
            "slowmo": slowmo,
            "reader": "arrow",
            "cache": "memory",
        }
    )


def timing_settings(like: TrainSettings, *, workers: int, batch_size: int) -> TrainSettings:
    """Settings of a timing run of a bare method. Those of `APART` compute without messages within an epoch."""
    changed = like.model_dump(mode="json") | {"workers": workers, "batch_size": batch_size, "slowmo": None}
    if like.algorithm.name == APART:
        changed["algorithm"]["local_steps"] = _NEVER
    return TrainSettings.model_validate(changed)
