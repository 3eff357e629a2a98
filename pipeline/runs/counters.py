"""The counters of each stage, as other stages and commands read them from its manifest.

Each class names the keys that are read. A stage may write more, which only the report shows.
`Version.counters` checks them: a missing or wrong key ends in the error for damaged files.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class Counters(BaseModel):
    """The base of all classes of counters; unknown keys are kept."""

    model_config = ConfigDict(extra="allow")


class SimulatedProcess(Counters):
    """What `simulate` records of the events of one physics process."""

    cross_section_pb: float
    cross_section_error_pb: float


class SimulateCounters(Counters):
    """The counters of `simulate`."""

    processes: dict[str, SimulatedProcess]


class CutflowCounters(Counters):
    """Events and weights by sample and step of the cutflow."""

    samples: dict[str, dict[str, int]]
    """Numbers of events, by sample and step."""
    weights: dict[str, dict[str, list[float]]]
    """[sum of weights, sum of squared weights], by sample and step."""


class IngestedPart(Counters):
    """A range of entries of a ROOT file; see `ingestion.range_output.EventsPart`."""

    sample: str
    file_uuid: str
    """UUID of the ROOT file, which identifies it wherever it lies."""
    start: int
    """First entry of the range in the ROOT file."""
    name: str
    """Name of its Parquet file; empty if no event of the range passes."""

    @property
    def keys_name(self) -> str:
        """Name of the file of the keys of its entries."""
        return f"{self.file_uuid}-{self.start:09d}.npy"


class IngestCounters(CutflowCounters):
    """The counters of `ingest`."""

    generated: dict[str, dict[str, float]] = {}
    bad_files: list[dict[str, Any]] = []
    """ROOT files that were skipped as damaged."""
    waiting_files: list[dict[str, Any]] = []
    """ROOT files that were left for a later run."""
    parts: list[IngestedPart] = []


class Normalisation(Counters):
    """How the events of a sample are normalised."""

    factor: float
    """Factor on the weights of its events."""
    stated_sum: float | None = None
    """Sum of weights of all generated events, where it is stated."""


class KernelOutputRecord(Counters):
    """An output of the kernels; see `features.kernel_pass.KernelOutput`."""

    name: str
    lies_in: str
    """Name of the version whose run computed it, which is that of its folder."""
    file_digest: str = ""
    """Digest of the file; earlier releases recorded none."""


class FeaturesCounters(CutflowCounters):
    """The counters of `features`."""

    normalisation: dict[str, Normalisation]


class KernelCounters(Counters):
    """The outputs of the kernels that a version of `features` was made from."""

    kernel_outputs: list[KernelOutputRecord] = []


class TrainingSummary(Counters):
    """The summary of a training, which `training.loop.summary` writes."""

    best_val_loss: float
    best_val_accuracy: float
    best_epoch: int
    epochs: int
    seconds: float
    created: str


class TrainCounters(Counters):
    """The counters of `train`."""

    networks: dict[str, TrainingSummary]
    """The first training of each network."""
    further: dict[str, dict[str, TrainingSummary]] = {}
    """Trainings with other seeds, by network and folder."""


class Measured(Counters):
    """A measured number with its error."""

    value: float
    error: float


class ModelMetrics(Counters):
    """The results of a model on the test split."""

    accuracy: Measured
    auc: dict[str, Measured] = {}
    """Area under the ROC curve of each class."""


class EvaluateCounters(Counters):
    """The counters of `evaluate`."""

    runs: dict[str, ModelMetrics]
    """Results by model."""
