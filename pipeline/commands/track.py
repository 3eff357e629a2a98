"""`track`: log trainings and evaluations to MLflow, one run per network and evaluation."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hep_core.secrets import redact
from pipeline.commands.config import has_sources_inside
from pipeline.errors import ConfigError, TrackingError
from pipeline.run_folder import RunFolder
from pipeline.runs.counters import EvaluateCounters, TrainCounters
from pipeline.runs.log import timestamp
from pipeline.runs.version import Version
from pipeline.stages.report import Report
from training.loop.records import read_records

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

#: Tags that identify a run: its evaluation and its network.
EVALUATION: Final = "hep_pipeline.evaluation"
NETWORK: Final = "hep_pipeline.network"
#: MLflow's own variable for the address of its server.
_URI_VARIABLE: Final = "MLFLOW_TRACKING_URI"
#: Highest length of a parameter in MLflow.
_MAX_LETTERS: Final = 500
#: Characters that no name in MLflow may have.
_REFUSED: Final = re.compile(r"[^A-Za-z0-9_. -]")
#: Values of an epoch that become curves.
_CURVES: Final = ("train_loss", "val_loss", "val_accuracy", "consensus_distance")


class Tracked(NamedTuple):
    """A network that MLflow has a run of."""

    network: str
    run_id: str
    """Identifier of the run in MLflow."""
    is_new: bool
    """Whether this call logged it."""


def track(run_folder: RunFolder) -> list[Tracked]:
    """Log each network of the current training and evaluation to MLflow, as one run each.

    A run that exists already stays unchanged. The log and the results of the run folder, which
    holds all outputs of a config, name each network and its run.

    Raises:
        ConfigError: No address of MLflow is set.
        TrackingError: MLflow cannot be reached, or refuses a record.
    """
    uri = run_folder.config.mlflow.uri or os.environ.get(_URI_VARIABLE)
    if not uri:
        raise ConfigError(f"track: set the address of MLflow by mlflow.uri or {_URI_VARIABLE}.")
    # By default MLflow tries a missing server for minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    # This lock lets all other commands run meanwhile.
    with run_folder.locked("track", only_reads=True):
        # The outputs in use of the stages that a report reads, by stage.
        upstream = run_folder.upstream(Report(), command="track")
        networks = upstream["train"].counters(TrainCounters).networks
        try:
            client = MlflowClient(tracking_uri=uri)
            experiment_id = _experiment_id(client, run_folder.config.mlflow.experiment)
            tracked_networks = [
                _track_network(client, experiment_id, network, upstream) for network in networks
            ]
        except MlflowException as cause:
            # Messages of MLflow may hold whole pages of a proxy.
            raise TrackingError(f"MLflow at {redact(uri)}: {redact(str(cause))[:1000]}") from cause
        for tracked in tracked_networks:
            run_folder.log_if_possible(
                "network tracked",
                network=tracked.network,
                mlflow_run=tracked.run_id,
                is_new=tracked.is_new,
            )
            state = "logged" if tracked.is_new else "there already"
            run_folder.results.add(f"{tracked.network} {state} as run {tracked.run_id}")
        return tracked_networks


def _experiment_id(client: MlflowClient, name: str) -> str:
    """Return the id of the experiment of a name; it is created if MLflow has none."""
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        return client.create_experiment(name)
    return experiment.experiment_id


def _track_network(
    client: MlflowClient, experiment_id: str, network: str, upstream: Mapping[str, Version]
) -> Tracked:
    """Log parameters, curves, results and files of a network, unless MLflow has its run already.

    Tags with the evaluation and the network identify the run. It is marked as finished at the end,
    so a killed command leaves an unfinished one. `upstream` holds the output in use of each stage,
    by the name of the stage.
    """
    trained, evaluated = upstream["train"], upstream["evaluate"]
    tags = {
        EVALUATION: f"{evaluated.name} of {evaluated.manifest.created.isoformat()}",
        NETWORK: network,
    }
    if run_id := _finished_run(client, experiment_id, tags):
        return Tracked(network, run_id, is_new=False)

    summary = trained.counters(TrainCounters).networks[network]
    end = timestamp(summary.created)
    # The start of a training without interruptions.
    start = end - summary.seconds
    run_id = client.create_run(
        experiment_id,
        start_time=_milliseconds(start),
        run_name=f"{network} {trained.name}",
        tags=tags | {"code_version": evaluated.manifest.code_version},
    ).info.run_id
    # The client splits the batch into calls of the size that servers take.
    client.log_batch(
        run_id,
        params=_params(network, upstream),
        metrics=[
            *_curves(trained.folder / network, start),
            _metric("training_seconds", summary.seconds, end),
            *_results(network, evaluated),
        ],
    )
    _log_files(client, run_id, network, upstream)
    client.set_terminated(run_id, end_time=_milliseconds(end))
    return Tracked(network, run_id, is_new=True)


def _finished_run(client: MlflowClient, experiment_id: str, tags: Mapping[str, str]) -> str | None:
    """Return the id of the finished run with these tags; None if there is none.

    Unfinished runs with the same tags, which a killed command left, are deleted.
    """
    query = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
    for run in client.search_runs([experiment_id], query):
        if run.info.status == "FINISHED":
            run_id: str = run.info.run_id
            return run_id
        client.delete_run(run.info.run_id)
    return None


def _params(network: str, upstream: Mapping[str, Version]) -> list[Param]:
    """List the values of the config by dotted key, as each stage used them.

    The settings of the network are those after `train_by_network` and the grid search. MLflow takes
    texts up to a limit, so longer ones are cut. `upstream` is that of `_track_network`.
    """
    from mlflow.entities import Param

    trained = upstream["train"]
    config = dict(trained.manifest.config)
    # What this section sets is part of `train` below.
    del config["train_by_network"]
    config["samples"] = upstream["ingest"].config.samples
    # The manifest of each stage holds the settings that it ran with.
    for stage, version in upstream.items():
        if stage in config:
            config[stage] = version.manifest.config[stage]
    # `run.json` holds the settings that this network was really trained with.
    run = json.loads((trained.folder / network / "run.json").read_text(encoding="utf-8"))
    config |= {"model": run["model"], "train": run["train"]}

    params = []
    for name, value in _named_values(config):
        text = value if isinstance(value, str) else json.dumps(value)
        params.append(Param(name, text[:_MAX_LETTERS]))
    return params


def _named_values(section: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the name and the value of each entry of a section or a list of sections, at any depth.

    A section with a key that MLflow refuses in names, such as a condition of `label_by`, is one
    entry. The prefix is the name of the section with a dot behind it.
    """
    items = section.items() if isinstance(section, dict) else enumerate(section)
    for key, value in items:
        name = f"{prefix}{key}"
        if has_sources_inside(value) and _has_allowed_keys(value):
            yield from _named_values(value, f"{name}.")
        else:
            yield name, value


def _has_allowed_keys(section: Any) -> bool:
    """Return whether MLflow takes all keys of a section in names; a list has numbers as keys."""
    keys = section if isinstance(section, dict) else ()
    return not any(_REFUSED.search(key) for key in keys)


def _curves(training: Path, start: float) -> Iterator[Metric]:
    """Yield the values of each epoch as points of learning curves.

    `start` is the time when the training began [s since 1970]; each epoch ends its own seconds
    after the one before.
    """
    time = start
    for record in read_records(training)[0]:
        time += record["seconds"]
        for name in _CURVES:
            if record.get(name) is not None:
                yield _metric(name, record[name], time, record["epoch"])


def _results(network: str, evaluated: Version) -> Iterator[Metric]:
    """Yield accuracy and areas under ROC curves on the test split, each with its error."""
    metrics = evaluated.counters(EvaluateCounters).runs[network]
    estimates = {"test_accuracy": metrics.accuracy}
    for class_name, area in metrics.auc.items():
        name = _REFUSED.sub("_", class_name)
        estimates[f"test_auc/{name}"] = area
    time = evaluated.manifest.created.timestamp()
    for name, estimate in estimates.items():
        yield _metric(name, estimate.value, time)
        yield _metric(f"{name}_error", estimate.error, time)


def _metric(name: str, value: float, time: float, epoch: int = 0) -> Metric:
    """Make MLflow's record of a value at a time [s since 1970]."""
    from mlflow.entities import Metric

    return Metric(name, float(value), _milliseconds(time), epoch)


def _log_files(
    client: MlflowClient, run_id: str, network: str, upstream: Mapping[str, Version]
) -> None:
    """Upload numbers and plots of the evaluation, and the ONNX file if there is one, to MLflow.

    `upstream` is that of `_track_network`.
    """
    evaluated = upstream["evaluate"]
    client.log_artifact(run_id, str(evaluated.folder / "metrics.json"), "evaluate")
    for path in sorted((evaluated.folder / network / "plots").glob("*.png")):
        client.log_artifact(run_id, str(path), "evaluate/plots")
    if "export" in upstream:
        onnx_file = upstream["export"].folder / network / "model.onnx"
        client.log_artifact(run_id, str(onnx_file), "export")


def _milliseconds(seconds: float) -> int:
    """Return a time in the unit of MLflow, whole milliseconds."""
    return round(1000 * seconds)
