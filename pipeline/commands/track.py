"""`track`: log trainings and evaluations to an MLflow server, one run per network and evaluation."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hep_core.secrets import redact
from pipeline.commands.config import has_parts, values
from pipeline.errors import ConfigError, TrackingError
from pipeline.run_folder import RunFolder
from pipeline.runs.log import timestamp
from pipeline.runs.store import Version
from pipeline.stages.report import Report
from training.loop.records import read_records

if TYPE_CHECKING:
    from mlflow import MlflowClient

#: Tags that identify a run: its evaluation and its network.
EVALUATION: Final = "hep_pipeline.evaluation"
NETWORK: Final = "hep_pipeline.network"
_URI_VARIABLE: Final = "MLFLOW_TRACKING_URI"
#: Highest length of a parameter in MLflow.
_MOST_LETTERS: Final = 500
#: Values of an epoch that become curves.
_CURVES: Final = ("train_loss", "val_loss", "val_accuracy", "consensus_distance")
#: Name, value, time [s since 1970] and epoch of a metric.
_Value = tuple[str, float, float, int]


class Tracked(NamedTuple):
    """A network that MLflow has a run of."""

    network: str
    run_id: str
    is_new: bool
    """Whether this call logged it."""


def track(run_folder: RunFolder) -> list[Tracked]:
    """Log each network of the current training and evaluation; a run that exists already stays unchanged."""
    uri = run_folder.config.mlflow.uri or os.environ.get(_URI_VARIABLE)
    if not uri:
        raise ConfigError(f"track: set the address of MLflow by mlflow.uri or {_URI_VARIABLE}.")
    # By default MLflow tries a missing server for minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    with run_folder.locked("track"):
        upstream = run_folder.upstream(Report(), command="track")
        try:
            client = MlflowClient(tracking_uri=uri)
            name = run_folder.config.mlflow.experiment
            found = client.get_experiment_by_name(name)
            experiment = found.experiment_id if found else client.create_experiment(name)
            networks = upstream["train"].manifest["counters"]["networks"]
            tracked = [_track(client, experiment, network, upstream) for network in networks]
        except MlflowException as cause:
            raise TrackingError(f"MLflow at {redact(uri)}: {redact(str(cause))[:1000]}") from cause
        for each in tracked:
            run_folder.log.event(
                "network tracked", network=each.network, mlflow_run=each.run_id, is_new=each.is_new
            )
            state = "logged" if each.is_new else "there already"
            run_folder.results.add(f"{each.network} {state} as run {each.run_id}")
        return tracked


def _track(
    client: MlflowClient, experiment: str, network: str, upstream: Mapping[str, Version]
) -> Tracked:
    from mlflow.entities import Metric, Param

    evaluated = upstream["evaluate"]
    tags = {EVALUATION: f"{evaluated.name} of {evaluated.manifest['created']}", NETWORK: network}
    words = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
    for run in client.search_runs([experiment], words):
        if run.info.status == "FINISHED":
            return Tracked(network, run.info.run_id, is_new=False)
        # A killed command left it.
        client.delete_run(run.info.run_id)
    trained = upstream["train"]
    run = json.loads((trained.folder / network / "run.json").read_text(encoding="utf-8"))
    summary = trained.manifest["counters"]["networks"][network]
    end = timestamp(summary["created"])
    # As if it had no interruptions.
    start = end - summary["seconds"]
    run_id = client.create_run(
        experiment,
        start_time=_milliseconds(start),
        run_name=f"{network} {trained.name}",
        tags=tags | {"code_version": str(evaluated.manifest["code_version"])},
    ).info.run_id
    settings = {name: run[name] for name in ("model", "train")}
    measured = [
        *_curves(trained.folder / network, start),
        ("training_seconds", summary["seconds"], end, 0),
    ]
    found, when = (
        evaluated.manifest["counters"]["runs"][network],
        timestamp(evaluated.manifest["created"]),
    )
    # MLflow allows no other characters.
    areas = {
        f"test_auc/{re.sub(r'[^A-Za-z0-9_. -]', '_', name)}": area
        for name, area in found["auc"].items()
    }
    for name, estimate in {"test_accuracy": found["accuracy"], **areas}.items():
        measured += [
            (name, estimate["value"], when, 0),
            (f"{name}_error", estimate["error"], when, 0),
        ]
    # The client cuts them into calls of the size that servers take.
    client.log_batch(
        run_id,
        params=[
            Param(
                ".".join(map(str, keys)),
                (value if isinstance(value, str) else json.dumps(value))[:_MOST_LETTERS],
            )
            for keys, value in values(_config(settings, upstream))
            if not has_parts(value)
        ],
        metrics=[
            Metric(name, float(value), _milliseconds(when), epoch)
            for name, value, when, epoch in measured
        ],
    )
    files = [(evaluated.folder / "metrics.json", "evaluate")]
    files += [
        (path, "evaluate/plots")
        for path in sorted((evaluated.folder / network / "plots").glob("*.png"))
    ]
    if "export" in upstream:
        files.append((upstream["export"].folder / network / "model.onnx", "export"))
    for path, place in files:
        client.log_artifact(run_id, str(path), place)
    client.set_terminated(run_id, end_time=_milliseconds(end))
    return Tracked(network, run_id, is_new=True)


def _curves(training: Path, start: float) -> Iterator[_Value]:
    """The learning curves of a training that began at a time [s since 1970]."""
    time = start
    for record in read_records(training)[0]:
        time += record["seconds"]
        yield from (
            (name, record[name], time, record["epoch"])
            for name in _CURVES
            if record.get(name) is not None
        )


def _config(settings: Mapping[str, Any], upstream: Mapping[str, Version]) -> dict[str, Any]:
    """The config of each stage, and the settings of the network after `train_by_network` and the grid search."""
    config: dict[str, Any] = upstream["train"].manifest["config"]
    data = upstream["ingest"].manifest["config"]
    of_stages = {
        name: each.manifest["config"][name] for name, each in upstream.items() if name in config
    }
    given = {name: each for name, each in config.items() if name != "train_by_network"}
    return {**given, "samples": data["samples"], **of_stages, **settings}


def _milliseconds(seconds: float) -> int:
    return round(1000 * seconds)
