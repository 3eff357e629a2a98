"""Features Parquet to a trained model."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from hep_core.plugin_functions import code_module
from models.networks.network_settings import NetworkSettings
from models.networks.registry import ModelName
from pipeline.config import Config
from pipeline.configuration.keys import flat_items
from pipeline.machine.doctor import Need
from pipeline.runs.plugin_code import network_code
from pipeline.runs.provenance import now
from pipeline.stages.base import Check, Context, Part, Result, Stage
from pipeline.stages.training_remarks import training_remarks
from pipeline.terminal.progress import Bar
from pipeline.terminal.tables import describe, rank_table
from training.topology import TOPOLOGIES

if TYPE_CHECKING:
    from training.launching.run_spec import RunSpec
    from training.loop.progress import Progress
    from training.settings import TrainSettings

#: Keys of the record of an epoch, and of the summary of a training, about times and speed. They
#: differ between equal trainings.
_VOLATILE: Final = (
    "consensus_distance",
    "created",
    "exchange_seconds",
    "hidden_seconds",
    "per_rank",
    "samples_per_second",
    "seconds",
    "seconds_by_kind",
    "wait_seconds",
)


class Train(Stage):
    """Trains the configured networks, one after the other, each in a folder of its name.

    Further trainings of a network, with other seeds, have folders beside it; see
    `Config.trainings_of`.
    """

    name: ClassVar[str] = "train"
    reads: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "features": ("dataset.json", "scaler.json", "train/*", "val/*"),
        "gridsearch": ("best.json",),
    }
    needs: ClassVar[tuple[Need, ...]] = (Need.MPI,)
    volatile: ClassVar[frozenset[str]] = frozenset(
        f"{place}/{key}"
        for place in ("counters/networks/*", "counters/further/*/*", "rank-0.jsonl/*")
        for key in _VOLATILE
    )

    def upstream_of(self, config: Config) -> tuple[str, ...]:
        """Return the features, and the grid search if a network takes its settings from there."""
        return ("features", "gridsearch") if config.model.searched else ("features",)

    def entry_points(self, config: Config) -> tuple[str, ...]:  # noqa: ARG002
        """Return no modules, since each training (see `parts`) has its own."""
        return ()

    def parts(self, config: Config) -> dict[str, Part]:
        """Return the trainings of the networks, by folder; each is repeated only if it changed."""
        return {
            folder: self._part(config, network, settings)
            for network in config.model.names
            for folder, settings in config.trainings_of(network).items()
        }

    def _part(self, config: Config, network: ModelName, settings: TrainSettings) -> Part:
        """Return what the result of one training of a network depends on.

        This is its settings, the code of its network and method, the features, and the grid
        search if its settings come from there.
        """
        items = {**flat_items(config.model.of(network), "model"), **flat_items(settings, "train")}
        # With `auto`, a training stays valid on a machine that holds another number of workers.
        items["train.workers"] = settings.workers_in_config
        code = [
            f"pipeline.stages.{self.name}",
            "training.launching.rank_process",
            "training.workloads.hep",
        ]
        code += [config.model.of(network).module, *method_modules(settings)]
        if settings.launcher == "spark-agents":
            code += ["training.launching.agent_process"]
        upstream = ["features"]
        if config.model.of(network).is_searched:
            upstream.append("gridsearch")
            code.append("pipeline.runs.best_settings")
        return Part(items, tuple(code), tuple(upstream))

    def can_continue(self, folder: Path) -> bool:
        """Whether an interrupted run left a checkpoint."""
        return any(folder.glob("*/checkpoints/*/complete.json"))

    def run(self, context: Context) -> Result:
        """Train all networks one after the other, or take over trainings that have not changed.

        A training runs in this process or in several, as its launcher says. The checks demand a
        finite loss, and the expected number of events trained on.
        """
        config = context.config
        # All settings are checked before the first training begins.
        plans = [
            _plan(context, network, folder, settings)
            for network in config.model.names
            for folder, settings in config.trainings_of(network).items()
        ]
        first: dict[str, dict[str, Any]] = {}
        further: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in config.model.names}
        checks: list[Check] = []
        for plan in plans:
            summary = _train_or_take_over(context, plan)
            trainings = first if plan.folder == plan.network else further[plan.network]
            trainings[plan.folder] = summary
            checks += _checks(plan.folder, summary)
        losses = [
            f"{network} {summary['best_val_loss']:.4f} (accuracy "
            f"{summary['best_val_accuracy']:.3f}, epoch {summary['best_epoch'] + 1} of "
            f"{summary['epochs']})"
            for network, summary in first.items()
        ]
        return Result(
            summary=f"validation loss of {', '.join(losses)}",
            counters={"networks": first, "further": further},
            checks=checks,
        )


class _TrainingPlan(NamedTuple):
    """A training that is to be done, with the results of the grid search in its settings."""

    network: ModelName
    folder: str
    """Name of its folder: that of the network, or another one for a further seed."""
    model: NetworkSettings
    settings: TrainSettings


def method_modules(settings: TrainSettings) -> list[str]:
    """Return the modules that a training method runs, such as that of its topology.

    A registry imports the modules of all methods, so they are named here instead of found by their
    imports: only those of the chosen method count for the result.
    """
    method = settings.algorithm
    modules = [type(method).__module__, method.algorithm_class.__module__]
    topology = getattr(method, "topology", None)
    if topology:
        modules.append(code_module(TOPOLOGIES[topology]))
    if settings.slowmo is not None:
        modules.append(type(settings.slowmo).__module__)
    if settings.staleness_bound is not None:
        modules.append("training.algorithms.stale_synchronous")
    return modules


def _plan(
    context: Context, network: ModelName, folder: str, settings: TrainSettings
) -> _TrainingPlan:
    """Return the plan of a training, with the best settings of the grid search where wanted.

    The settings of a training that is taken over are not needed, so they stay as they are.

    Raises:
        IdleSettingError: A setting has no effect with one worker.
        ColumnError: A column of `train.decorrelate` is missing, not finite, or constant.
    """
    from features.dataset import FeatureDataset
    from pipeline.runs.best_settings import with_best_settings
    from training.readers.spectators import check_spectators

    model = context.config.model.of(network)
    if folder not in context.taken_over_parts:
        if model.is_searched:
            searched = context.upstream["gridsearch"]
            model, settings = with_best_settings(model, settings, searched, context.say)
        check_settings_act(network, settings)
        if settings.decorrelate is not None:
            features = FeatureDataset.load(context.upstream["features"].folder)
            check_spectators(features, settings.decorrelate)
    return _TrainingPlan(network, folder, model, settings)


def check_settings_act(network: ModelName, settings: TrainSettings) -> None:
    """Refuse a training of one worker with settings that act only between several.

    Raises:
        IdleSettingError: There is such a setting.
    """
    from training.errors import IdleSettingError

    try:
        settings.check_one_worker()
    except IdleSettingError as cause:
        raise IdleSettingError(f"{network}: {cause}") from None


def _train_or_take_over(context: Context, plan: _TrainingPlan) -> dict[str, Any]:
    """Do a training unless it is taken over from the version in use; return its summary.

    Training continues from a checkpoint if an interrupted run left one in the folder that fits.
    """
    folder = plan.folder
    if folder in context.taken_over_parts and context.current is not None:
        context.say(f"{folder}: nothing changed, taken over")
        counters = context.current.manifest.counters
        trainings = {**counters["networks"], **counters["further"].get(plan.network, {})}
        summary: dict[str, Any] = trainings[folder]
        return summary
    return _train(context, plan)


def _train(context: Context, plan: _TrainingPlan) -> dict[str, Any]:
    """Train a network into its folder, and print a table and remarks about the training.

    Returns:
        The summary that the training wrote, with the time as `created`.

    Raises:
        IdleSettingError: The model still has its first weights.
    """
    from pipeline.machine.launching import make_launcher
    from training.launching.run_spec import RunSpec
    from training.workloads.hep_settings import HepSettings

    context.say(f"{plan.folder}: {describe(plan.settings)}")
    features = context.upstream["features"].folder.absolute()
    code = network_code(plan.network)
    workload = HepSettings(folder=features, network=plan.model, plugin_code=code)
    spec = RunSpec(workload, plan.settings, context.out_dir.absolute() / plan.folder)
    spec.out_dir.mkdir(exist_ok=True)
    start = _describe_start(spec)
    if start is not None:
        context.say(f"{plan.folder}: {start}")
    with context.bar(f"train {plan.folder}", "steps") as bar:
        launch = make_launcher(spec, context.start_spark, context.say)
        launch(on_progress=partial(_show_progress, bar), on_loss=context.say)
    # The first rank writes the summary at the end of the training.
    summary_text = (spec.out_dir / "summary.json").read_text(encoding="utf-8")
    summary: dict[str, Any] = json.loads(summary_text)
    check_model_moved(plan.folder, plan.settings, summary)
    context.console.print(rank_table(summary))
    for sentence in training_remarks(summary):
        context.say(sentence)
    return {**summary, "created": now()}


def _describe_start(spec: RunSpec) -> str | None:
    """Return whether a training continues an interrupted one; None if none left a checkpoint."""
    folder = spec.out_dir / "checkpoints"
    if not folder.exists():
        return None
    # They import torch.
    from training.loop.checkpoints import CheckpointFolder
    from training.loop.resumption import describe_start, settings_digest

    digest = settings_digest(spec.workload.meaning, spec.train)
    return describe_start(CheckpointFolder(folder, digest), spec.train)


def _show_progress(bar: Bar, progress: Progress) -> None:
    """Show on a bar how many steps of all epochs are done, with loss and speed.

    The consensus distance says how far the models of the workers are apart, if they differ.
    """
    # Epochs count from 1, and `progress.step` within the epoch.
    steps_done = (progress.epoch - 1) * progress.num_steps + progress.step
    note = (
        f"epoch {progress.epoch}/{progress.num_epochs}, loss {progress.loss:.3f}, "
        f"{progress.samples_per_second:,.0f} events/s"
    )
    distance = progress.consensus_distance
    if distance and math.isfinite(distance):
        note += f", consensus distance {distance:.2g}"
    bar(steps_done, progress.num_epochs * progress.num_steps, note)


def check_model_moved(folder: str, settings: TrainSettings, summary: Mapping[str, Any]) -> None:
    """Refuse a model that still has its first weights, since no worker sent a step to the server.

    This concerns only methods in which a server holds the model and workers push their steps.

    Args:
        folder: The folder of the training, for the message.
        settings: The settings of the training.
        summary: Its summary, with the numbers of pushes and other actions under `acted`.

    Raises:
        IdleSettingError: There was no push.
    """
    from training.errors import IdleSettingError

    method, num_acted = settings.algorithm, summary["acted"]
    # The classes of methods are no code that each training depends on.
    local_steps = method.model_dump().get("local_steps")
    has_server = local_steps is not None
    if not has_server or num_acted.get("pushes") != 0 or num_acted.get("slowmo_steps"):
        return
    problem = (
        f"{folder}: no worker sent a step to the server of {method.name}, so the model has its "
        f"first weights"
    )
    if any(rank.get("steps_not_finite", 0) for rank in summary["per_rank"]):
        raise IdleSettingError(
            f"{problem}: gradients or updates were not finite. Lower train.learning_rate."
        )
    raise IdleSettingError(
        f"{problem}: each worker made {summary['steps']} steps, and train.algorithm.local_steps is "
        f"{local_steps}. Lower it, or raise train.epochs."
    )


def _checks(training: str, summary: dict[str, Any]) -> list[Check]:
    """Return the checks of a training: a finite loss, and the number of events trained on.

    This number is that of epochs times that of events in the training split.

    Args:
        training: The folder of the training, for messages.
        summary: Its summary.
    """
    num_samples, loss = summary["samples"], summary["best_val_loss"]
    expected = summary["train_rows"] * summary["epochs"]
    return [
        Check(f"{training}: loss is finite", math.isfinite(loss), f"{loss}"),
        Check(
            f"{training}: events trained on = epochs x rows",
            num_samples == expected,
            f"{num_samples} = {expected}",
        ),
    ]
