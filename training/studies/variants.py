"""The variants of a comparison: the columns of the thesis' tables, and the training settings of each variant."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, NamedTuple

from training.settings import AlgorithmName, TrainSettings
from training.studies.settings import CompareSettings

#: Keys that a comparison takes from the section `train`, the same for every method.
_SHARED: Final = frozenset(
    {
        "optimizer", "learning_rate", "scale_learning_rate", "schedule", "momentum", "nesterov", "weight_decay",
        "precision", "exchange", "network", "overlap", "device", "launcher", "launcher_args", "max_restarts",
        "stall_seconds",
    }
)  # fmt: skip
#: More local steps than an epoch has.
_NEVER: Final = 10**9


class TableColumn(StrEnum):
    """The columns of the tables: the kind of slow momentum around a method."""

    BASELINE = "baseline"
    SLOWMO = "SlowMo"
    NO_AVERAGE = "SlowMo no avg."


METHOD_NAMES: Final[dict[AlgorithmName, str]] = {
    AlgorithmName.SGD: "SGD, one worker",
    AlgorithmName.LOCAL_SGD: "SGD, workers apart",
    AlgorithmName.AR_SGD: "AR-SGD",
    AlgorithmName.AD_PSGD: "AD-PSGD",
    AlgorithmName.SWARM_SGD: "SwarmSGD",
}
#: The methods in the order of rows and colours.
METHODS: Final = (AlgorithmName.AR_SGD, AlgorithmName.AD_PSGD, AlgorithmName.SWARM_SGD)
#: The same with sequential SGD.
ALL_METHODS: Final = (AlgorithmName.SGD, *METHODS)


class Variant(NamedTuple):
    """A cell of the tables: a method with or without slow momentum.

    Examples:
        >>> Variant(AlgorithmName.AD_PSGD, TableColumn.NO_AVERAGE).key
        'ad-psgd-slowmo-no-avg'
        >>> Variant(AlgorithmName.AD_PSGD, TableColumn.NO_AVERAGE).title
        'AD-PSGD + SlowMo no avg.'
    """

    algorithm: AlgorithmName
    column: TableColumn

    @property
    def key(self) -> str:
        """Name of the variant on disk."""
        endings = {TableColumn.BASELINE: "", TableColumn.SLOWMO: "-slowmo", TableColumn.NO_AVERAGE: "-slowmo-no-avg"}
        return f"{self.algorithm}{endings[self.column]}"

    @property
    def title(self) -> str:
        """Name of the variant in words."""
        name = METHOD_NAMES[self.algorithm]
        return name if self.column is TableColumn.BASELINE else f"{name} + {self.column}"

    @classmethod
    def of(cls, key: str) -> Variant:
        """The variant with this key."""
        return {variant.key: variant for variant in ALL_VARIANTS}[key]

    @property
    def plain(self) -> Variant:
        """The same method without slow momentum."""
        return Variant(self.algorithm, TableColumn.BASELINE)


REFERENCE: Final = Variant(AlgorithmName.AR_SGD, TableColumn.BASELINE)
#: The columns of the thesis' tables 4.2 and 4.3, and two controls that they lack: SGD on one worker, and slow momentum
#: without gossip. AR-SGD comes first: the others are compared with it.
ALL_VARIANTS: Final = (
    REFERENCE,
    Variant(AlgorithmName.SGD, TableColumn.BASELINE),
    Variant(AlgorithmName.AR_SGD, TableColumn.SLOWMO),
    *(Variant(method, column) for method in (AlgorithmName.AD_PSGD, AlgorithmName.SWARM_SGD) for column in TableColumn),
)
#: The variants of figures 4.8 and 4.10.
BEST: Final = (
    REFERENCE,
    Variant(AlgorithmName.AD_PSGD, TableColumn.NO_AVERAGE),
    Variant(AlgorithmName.SWARM_SGD, TableColumn.NO_AVERAGE),
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
    slowmo = None
    if variant.column is not TableColumn.BASELINE:
        exact = variant.column is TableColumn.SLOWMO
        slowmo = {"tau": settings.tau, "beta": settings.beta, "alpha": 1.0, "exact_average": exact}
    return TrainSettings.model_validate(
        {
            **shared,
            "algorithm": variant.algorithm,
            "workers": 1 if variant.algorithm is AlgorithmName.SGD else settings.workers,
            "learning_rate": base.learning_rate * rate_factor,
            "epochs": epochs,
            "batch_size": settings.batch_size,
            "local_steps": settings.local_steps,
            "seed": seed,
            "slowmo": slowmo,
            "reader": "arrow",
            "cache": "memory",
        }
    )


def timing_settings(shared: TrainSettings, method: AlgorithmName, *, workers: int, batch_size: int) -> TrainSettings:
    """Settings of a timing run of a bare method, otherwise like those of another run.

    With `local-sgd`, workers compute without messages within an epoch.
    """
    changed: dict[str, Any] = {"algorithm": method, "workers": workers, "batch_size": batch_size, "slowmo": None}
    if method is AlgorithmName.LOCAL_SGD:
        changed["local_steps"] = _NEVER
    return TrainSettings.model_validate({**shared.model_dump(mode="json"), **changed})
