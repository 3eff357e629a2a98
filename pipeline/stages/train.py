"""Features Parquet to a trained model."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from hep_core.plugin_functions import code_module
from models.networks.network_settings import NetworkSettings
from models.networks.registry import ModelName
from pipeline.config import Config
from pipeline.configuration.keys import flat_items
from pipeline.machine.doctor import Need
from pipeline.runs.provenance import now
from pipeline.stages.base import Check, Context, Part, Result, Stage
from pipeline.terminal.tables import describe, rank_table
from training.algorithms.method import METHODS
from training.topology import TOPOLOGIES

if TYPE_CHECKING:
    from training.settings import TrainSettings

#: Keys of the record of an epoch, and of the summary of a training, about times and speed.
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
#: Difference between the numbers of uses of an event in an epoch below which nothing is said.
_USED_EQUALLY: Final = 0.1


class Train(Stage):
    """Trains the configured networks, one after the other, each in a folder of its name.

    Further trainings of a network, with other seeds, have folders beside it; see `Config.trainings_of`.
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
        """The features, and the grid search if a network takes its settings from there."""
        return ("features", "gridsearch") if config.model.searched else ("features",)

    def entry_points(self, config: Config) -> tuple[str, ...]:  # noqa: ARG002
        """None besides those of its networks."""
        return ()

    def parts(self, config: Config) -> dict[str, Part]:
        """The trainings of the networks."""
        return {
            folder: self._part(config, network, settings)
            for network in config.model.names
            for folder, settings in config.trainings_of(network).items()
        }

    def _part(self, config: Config, network: ModelName, settings: TrainSettings) -> Part:
        items = {**flat_items(config.model.of(network), "model"), **flat_items(settings, "train")}
        code = [
            f"pipeline.stages.{self.name}",
            "training.launching.rank_process",
            "training.workloads.hep",
        ]
        code += [config.model.of(network).module, *modules_of_method(settings)]
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
        """Train in this process or under mpirun."""
        planned = {
            (network, folder): _planned(context, network, folder, each)
            for network in context.config.model.names
            for folder, each in context.config.trainings_of(network).items()
        }
        summaries: dict[str, dict[str, Any]] = {}
        further: dict[str, dict[str, dict[str, Any]]] = {}
        for (network, folder), each in planned.items():
            found = self._summary(context, network, folder, each)
            further.setdefault(network, {})
            (summaries if folder == network else further[network])[folder] = found
        best = ", ".join(
            f"{network} {each['best_val_loss']:.4f} (accuracy {each['best_val_accuracy']:.3f}, epoch "
            f"{each['best_epoch'] + 1} of {each['epochs']})"
            for network, each in summaries.items()
        )
        return Result(
            summary=f"validation loss of {best}",
            counters={"networks": summaries, "further": further},
            checks=[
                check
                for trainings in (summaries, *further.values())
                for folder, summary in trainings.items()
                for check in _checks(folder, summary)
            ],
        )

    def _summary(
        self, context: Context, network: ModelName, folder: str, planned: _Planned
    ) -> dict[str, Any]:
        """Summary of a training: done now, or taken over from the version in use."""
        if folder in context.taken_over_parts and context.current is not None:
            context.say(f"{folder}: nothing changed, taken over")
            counters = context.current.manifest.counters
            trainings = {**counters["networks"], **counters["further"].get(network, {})}
            summary: dict[str, Any] = trainings[folder]
            return summary
        if any((context.out_dir / folder).glob("checkpoints/*/complete.json")):
            context.say(f"{folder}: training continues from the checkpoint of an interrupted run")
        return _train(context, folder, planned)


#: The settings of a network and of its training, with the results of the grid search.
_Planned = tuple[NetworkSettings, "TrainSettings"]


def modules_of_method(settings: TrainSettings) -> list[str]:
    """The modules of a method, which the registry of methods imports for it."""
    found = [
        type(settings.algorithm).__module__,
        METHODS[settings.algorithm.name].algorithm.__module__,
    ]
    if topology := getattr(settings.algorithm, "topology", None):
        found.append(code_module(TOPOLOGIES[topology]))
    if settings.slowmo is not None:
        found.append(type(settings.slowmo).__module__)
    if settings.staleness_bound is not None:
        found.append("training.algorithms.stale_synchronous")
    return found


def _planned(
    context: Context, network: ModelName, folder: str, settings: TrainSettings
) -> _Planned:
    """A training that is to come; before any begins, one worker is refused for what only several do."""
    from pipeline.runs.best_settings import with_best_settings

    model = context.config.model.of(network)
    if folder not in context.taken_over_parts:
        if model.is_searched:
            model, settings = with_best_settings(
                model, settings, context.upstream["gridsearch"], context.say
            )
        refuse_idle(network, settings)
    return model, settings


def refuse_idle(network: ModelName, settings: TrainSettings) -> None:
    """Refuse a training of one worker with what only several workers do."""
    from training.errors import IdleSettingError

    try:
        settings.check_one_worker()
    except IdleSettingError as cause:
        raise IdleSettingError(f"{network}: {cause}") from None


def _train(context: Context, folder: str, planned: _Planned) -> dict[str, Any]:
    """Train a network into a folder; returns its summary."""
    from pipeline.machine.launching import launcher_of
    from training.launching.rank import RunSpec
    from training.loop.progress import Progress
    from training.workloads.hep_settings import HepSettings

    say, (model, settings) = context.say, planned
    say(f"{folder}: {describe(settings)}")
    spec = RunSpec(
        HepSettings(folder=context.upstream["features"].folder.absolute(), network=model),
        settings,
        context.out_dir.absolute() / folder,
    )
    spec.out_dir.mkdir(exist_ok=True)
    with context.bar(f"train {folder}", "steps") as bar:

        def show(progress: Progress) -> None:
            done = (progress.epoch - 1) * progress.num_steps + progress.step
            apart = progress.consensus_distance
            note = (
                f"epoch {progress.epoch}/{progress.num_epochs}, loss {progress.loss:.3f}, "
                f"{progress.samples_per_second:,.0f} events/s"
                f"{f', consensus distance {apart:.2g}' if apart and math.isfinite(apart) else ''}"
            )
            bar(done, progress.num_epochs * progress.num_steps, note)

        launcher_of(spec, context.start_spark, say)(on_progress=show, on_loss=say)
    summary: dict[str, Any] = json.loads(
        (spec.out_dir / "summary.json").read_text(encoding="utf-8")
    )
    refuse_first_weights(folder, settings, summary)
    context.console.print(rank_table(summary))
    for sentence in about_what_was_left_out(summary):
        say(sentence)
    return {**summary, "created": now()}


def refuse_first_weights(folder: str, settings: TrainSettings, summary: Mapping[str, Any]) -> None:
    """Refuse the model of a server to which no worker has sent a step: it has the first weights.

    Raises:
        IdleSettingError: There was no push.
    """
    from training.errors import IdleSettingError

    method, acted = settings.algorithm, summary["acted"]
    # The classes of methods are no code that each training depends on.
    local_steps = method.model_dump().get("local_steps")
    if local_steps is None or acted.get("pushes") != 0 or acted.get("slowmo_steps"):
        return
    if any(rank.get("steps_not_finite", 0) for rank in summary["per_rank"]):
        raise IdleSettingError(
            f"{folder}: no worker sent a step to the server of {method.name}, since gradients or updates were not "
            f"finite, so the model has its first weights. Lower train.learning_rate."
        )
    raise IdleSettingError(
        f"{folder}: no worker sent a step to the server of {method.name}, so the model has its first weights: each "
        f"worker made {summary['steps']} steps, and train.algorithm.local_steps is {local_steps}. Lower it, or "
        f"raise train.epochs."
    )


def about_what_was_left_out(summary: Mapping[str, Any]) -> list[str]:
    """Sentences about what never acted or had no effect, averages that a connection prevented, events used unequally.

    A run that refuses all steps ends with its first weights, which are finite.

    Examples:
        >>> whole = {"own_rows": False, "acted": {}}
        >>> about_what_was_left_out({**whole, "per_rank": [{"steps_not_finite": 0}, {"steps_not_finite": 2}]})
        ['2 steps had no effect, since a gradient or an update was not finite: lower train.learning_rate.']
        >>> found = about_what_was_left_out({**whole, "per_rank": [{"averages_lost": 7}]})
        >>> found[0].partition(":")[0]
        '7 averages were left out, since a connection between two workers broke'
        >>> about_what_was_left_out({**whole, "acted": {"slowmo_steps": 0}, "per_rank": []})
        ['what is set never acted: there are no slowmo steps in this training.']
        >>> uneven = {"own_rows": True, "acted": {}, "workers": 2, "samples": 40}
        >>> found = about_what_was_left_out({**uneven, "per_rank": [{"samples": 10}, {"samples": 30}]})
        >>> found[0].partition(":")[0]
        'the events of a slow worker were used 0.50 times an epoch, those of a fast one 1.50 times'
    """
    refused, lost = (
        sum(rank.get(name, 0) for rank in summary["per_rank"])
        for name in ("steps_not_finite", "averages_lost")
    )
    never = [name.replace("_", " ") for name, number in summary["acted"].items() if not number]
    found = [f"what is set never acted: there are no {name} in this training." for name in never]
    if refused:
        found.append(
            f"{refused} steps had no effect, since a gradient or an update was not finite: lower train.learning_rate."
        )
    if lost:
        found.append(
            f"{lost} averages were left out, since a connection between two workers broke: these pairs no longer "
            f"averaged. Check the network between the hosts, or choose another with train.algorithm.network."
        )
    if summary["own_rows"]:
        used = [
            rank["samples"] * summary["workers"] / summary["samples"]
            for rank in summary["per_rank"]
        ]
        if max(used) - min(used) > _USED_EQUALLY:
            found.append(
                f"the events of a slow worker were used {min(used):.2f} times an epoch, those of a fast one "
                f"{max(used):.2f} times: each worker trains on events of its own, as fast as it can."
            )
    return found


def _checks(training: str, summary: dict[str, Any]) -> list[Check]:
    used, expected = summary["samples"], summary["train_rows"] * summary["epochs"]
    return [
        Check(
            f"{training}: loss is finite",
            math.isfinite(summary["best_val_loss"]),
            f"{summary['best_val_loss']}",
        ),
        Check(
            f"{training}: events trained on = epochs x rows",
            used == expected,
            f"{used} = {expected}",
        ),
    ]
