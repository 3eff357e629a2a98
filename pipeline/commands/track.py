"""`track`: log trainings and evaluations to an MLflow server, one run per network and evaluation."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ingestion.secrets import redact
from pipeline.errors import ConfigError, MachineError, TrackingError
from pipeline.run_folder import RunFolder
from pipeline.runs.store import Version
from pipeline.stages.report import Report

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

#: Tags that identify a run: its evaluation and its network.
EVALUATION: Final = "hep_pipeline.evaluation"
NETWORK: Final = "hep_pipeline.network"
_URI_VARIABLE: Final = "MLFLOW_TRACKING_URI"
#: Highest length of a parameter in MLflow.
_MOST_LETTERS: Final = 500
#: Values of an epoch that become curves.
_CURVES: Final = ("train_loss", "val_loss", "val_accuracy", "consensus_distance")


class _Training(NamedTuple):
    """The records of the training of a network."""

    settings: dict[str, Any]
    """The network and its training settings, after `train_by_network` and the grid search."""
    epochs: list[dict[str, Any]]
    """Its records."""
    seconds: float
    """Duration [s]."""
    end: float
    """Time of its end [s since 1970]."""

    @classmethod
    def of(cls, network: str, trained: Version) -> _Training:
        folder = trained.folder / network
        run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        records = (folder / "metrics" / "rank-0.jsonl").read_text(encoding="utf-8").splitlines()
        summary = trained.manifest["counters"]["networks"][network]
        settings = {name: run[name] for name in ("model", "train")}
        return cls(settings, [*map(json.loads, records)], summary["seconds"], _seconds(summary["created"]))

    @property
    def start(self) -> float:
        """Time of its start, as if it had no interruptions [s since 1970]."""
        return self.end - self.seconds

    def curves(self) -> Iterator[tuple[str, float, float, int]]:
        """Name, value, time and epoch of all points of its learning curves."""
        times = accumulate((each["seconds"] for each in self.epochs), initial=self.start)
        for record, time in zip(self.epochs, islice(times, 1, None), strict=True):
            for name in _CURVES:
                if record.get(name) is not None:
                    yield name, float(record[name]), time, int(record["epoch"])


class Tracked(NamedTuple):
    """A network that MLflow has a run of."""

    network: str
    run_id: str
    is_new: bool
    """Whether this call logged it."""


def track(run_folder: RunFolder) -> list[Tracked]:
    """Log each network of the current training and evaluation; a run that exists already stays unchanged.

    Raises:
        ConfigError: Neither `mlflow.uri` nor the environment names a server.
        MachineError: The package is not installed.
        MissingInputError: There is no evaluation yet, or it does not belong to the current training.
        TrackingError: MLflow refuses, cannot be reached, or its experiment was deleted.
    """
    uri = run_folder.config.mlflow.uri or os.environ.get(_URI_VARIABLE)
    if not uri:
        raise ConfigError(f"track: set the address of MLflow by mlflow.uri or {_URI_VARIABLE}.")
    # By default MLflow tries a missing server for minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ImportError as cause:
        raise MachineError("track needs the package mlflow-skinny: `.venv/bin/pip install -e '.[mlflow]'`.") from cause
    with run_folder.locked("track"):
        upstream = run_folder.upstream(Report(), command="track")
        try:
            client = MlflowClient(tracking_uri=uri)
            experiment = _experiment(client, run_folder.config.mlflow.experiment)
            networks = upstream["train"].manifest["counters"]["networks"]
            tracked = [_track(client, experiment, network, upstream) for network in networks]
        except MlflowException as cause:
            raise TrackingError(f"MLflow at {redact(uri)}: {redact(str(cause))[:1000]}") from cause
        for each in tracked:
            run_folder.log.event("network tracked", network=each.network, mlflow_run=each.run_id, is_new=each.is_new)
        return tracked


def _experiment(client: MlflowClient, name: str) -> str:
    found = client.get_experiment_by_name(name)
    if found and found.lifecycle_stage == "deleted":
        raise TrackingError(
            f"the experiment '{name}' was deleted in MLflow, which keeps its name. Set mlflow.experiment to another "
            f"one, or restore it: `mlflow experiments restore --experiment-id {found.experiment_id}`."
        )
    return str(found.experiment_id if found else client.create_experiment(name))


def _track(client: MlflowClient, experiment: str, network: str, upstream: Mapping[str, Version]) -> Tracked:
    evaluated = upstream["evaluate"]
    tags = {EVALUATION: f"{evaluated.name} of {evaluated.manifest['created']}", NETWORK: network}
    words = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
    for run in client.search_runs([experiment], words):
        if run.info.status == "FINISHED":
            return Tracked(network, run.info.run_id, is_new=False)
        # A killed command left it.
        client.delete_run(run.info.run_id)
    training = _Training.of(network, upstream["train"])
    run_id = client.create_run(
        experiment,
        start_time=_milliseconds(training.start),
        run_name=f"{network} {upstream['train'].name}",
        tags=tags | {"code_version": str(evaluated.manifest["code_version"])},
    ).info.run_id
    # The client cuts them into calls of the size that servers take.
    params, metrics = _params(_config(training, upstream)), _metrics(network, training, evaluated)
    client.log_batch(run_id, params=[*params], metrics=[*metrics])
    for path, place in _artifacts(network, upstream):
        client.log_artifact(run_id, str(path), place)
    client.set_terminated(run_id, end_time=_milliseconds(training.end))
    return Tracked(network, run_id, is_new=True)


def _config(training: _Training, upstream: Mapping[str, Version]) -> dict[str, Any]:
    """The config of each stage, and the settings of the network."""
    config: dict[str, Any] = upstream["train"].manifest["config"]
    data = upstream["ingest"].manifest["config"]
    of_stages = {name: each.manifest["config"][name] for name, each in upstream.items() if name in config}
    given = {name: each for name, each in config.items() if name != "train_by_network"}
    return {**given, "samples": data["samples"], **of_stages, **training.settings}


def _params(config: Mapping[str, Any]) -> Iterator[Param]:
    """A parameter for each key of a config."""
    from mlflow.entities import Param

    for key, value in flat(config):
        yield Param(key, (value if isinstance(value, str) else json.dumps(value))[:_MOST_LETTERS])


def flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of nested mappings, without empty ones.

    Examples:
        >>> list(flat({"train": {"epochs": 3, "per_layer": {}}, "classes": ["a"]}))
        [('train.epochs', 3), ('classes', ['a'])]
    """
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _metrics(network: str, training: _Training, evaluated: Version) -> Iterator[Metric]:
    """Learning curves by epoch, and the metrics of the test split; errors are separate metrics."""
    from mlflow.entities import Metric

    for name, value, time, epoch in training.curves():
        yield Metric(name, value, _milliseconds(time), epoch)
    yield Metric("training_seconds", training.seconds, _milliseconds(training.end), 0)
    measured = _milliseconds(_seconds(evaluated.manifest["created"]))
    found = evaluated.manifest["counters"]["runs"][network]
    estimates = {"test_accuracy": found["accuracy"]}
    estimates |= {f"test_auc/{_letters(name)}": area for name, area in found["auc"].items()}
    for name, estimate in estimates.items():
        yield Metric(name, float(estimate["value"]), measured, 0)
        yield Metric(f"{name}_error", float(estimate["error"]), measured, 0)


def _letters(name: str) -> str:
    """Name of a class in the characters that MLflow allows.

    Examples:
        >>> _letters("W+jets")
        'W_jets'
    """
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "_-. ") else "_" for letter in name)


def _seconds(when: str) -> float:
    """A time of a manifest [s since 1970]."""
    return dt.datetime.fromisoformat(when).timestamp()


def _milliseconds(seconds: float) -> int:
    return round(1000 * seconds)


def _artifacts(network: str, upstream: Mapping[str, Version]) -> Iterable[tuple[Path, str]]:
    """Files with their folders among the artifacts."""
    evaluated = upstream["evaluate"].folder
    yield evaluated / "metrics.json", "evaluate"
    for path in sorted((evaluated / network / "plots").glob("*.png")):
        yield path, "evaluate/plots"
    if "export" in upstream:
        yield upstream["export"].folder / network / "model.onnx", "export"
