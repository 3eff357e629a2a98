"""`promote` puts a trained network in use if it is better; `rollback` restores the one before."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from features.dataset import FeatureDataset
from features.errors import FeatureError
from hep_core.integrity import DamagedOutputError
from models.errors import ModelError, PluginCodeError
from models.evaluation.bootstrap import Estimate
from models.evaluation.evaluation_task import EvaluationTask
from models.evaluation.floor import shortfall
from models.evaluation.improvement import improvement
from models.evaluation.measurements import measurable_events
from models.evaluation.rounding import with_error
from models.evaluation.scored_events import ScoredEvents
from models.networks.registry import NETWORKS
from models.prediction import predict
from pipeline.errors import (
    USER_ERRORS,
    ConfigError,
    MissingInputError,
    PromotionError,
    cannot_write,
    nearest,
)
from pipeline.run_folder import RunFolder
from pipeline.runs import own_folders
from pipeline.runs.counters import TrainCounters
from pipeline.runs.model_registry import Registry, model_digest
from pipeline.runs.outputs import changed_files
from pipeline.runs.own_folders import claimed
from pipeline.runs.plugin_code import check_plugin_code
from pipeline.runs.provenance import code_version, now
from pipeline.runs.seen_events import copy_record
from pipeline.runs.trained_models import (
    FoundModel,
    check_classes,
    check_definitions,
    check_particles,
    check_unseen_events,
    read_trained,
)
from pipeline.runs.version import PromotedModel, Version
from pipeline.runs.version_store import number_of
from pipeline.stages.evaluate import Evaluate
from pipeline.stages.evaluation_task import task_of_run
from pipeline.stages.table import STAGE_OF, content_read
from pipeline.terminal.progress import Bar
from training.threads import use_threads


class PromotionOutcome(NamedTuple):
    """Decision about the candidate of a network."""

    network: str
    promoted: bool
    reason: str
    """Why, in words; after a comparison with its numbers."""


class _PromotionVerdict(NamedTuple):
    """Whether a candidate is better than what is in use, and why."""

    is_better: bool
    reason: str
    improvement: Estimate | None = None
    """Decrease of the mean cross-entropy with its standard error; None without a comparison."""


def promote(run_folder: RunFolder, *, force: bool = False) -> Iterator[PromotionOutcome]:
    """Compare each newly trained network with the model in use, and promote the better ones.

    Both models predict the same test events. A candidate must first reach the floor
    `promote.at_least`. It is then promoted if there is no model in use, or if the mean
    cross-entropy decreases by more than `promote.min_sigma` standard errors. If the two cannot be
    compared, as after a change of the features, the model in use stays.

    `force` promotes them independent of floor and comparison, also if there is none. Each outcome
    is yielded after it took effect.

    Raises:
        PromotionError: Some networks failed; the others have been decided.
    """
    use_threads(run_folder.config.train.threads)
    with run_folder.locked():
        upstream = run_folder.upstream(Evaluate(), command="promote")
        try:
            yield from _promote_networks(run_folder, upstream, force=force)
        except BaseException:
            # These are metrics for monitoring, a file that Prometheus reads.
            run_folder.write_metrics(failed="promote")
            raise
        run_folder.write_metrics(failed=None)


def _promote_networks(
    run_folder: RunFolder, upstream: Mapping[str, Version], *, force: bool
) -> Iterator[PromotionOutcome]:
    """Decide about each network; one that fails does not stop the next ones.

    Each decision goes to the results and the log of the run folder. `upstream` holds the output in
    use of each stage, by the name of the stage.

    Raises:
        DamagedOutputError: A file is not what was written, so no network can be trusted.
        PromotionError: Some networks failed; raised after all others are decided.
    """
    trained = upstream["train"]
    failures: list[str] = []
    for network in trained.counters(TrainCounters).networks:
        try:
            outcome = _Promotion(run_folder, network, upstream, force=force).decide()
        # Damage is an error of the user too, but it concerns all networks.
        except DamagedOutputError:
            raise
        except USER_ERRORS as error:
            failures.append(f"{network}: {error}")
            run_folder.results.add(f"{network} failed", promoted={network: {"failed": str(error)}})
            run_folder.log.event(
                "promotion failed", network=network, train=trained.name, message=str(error)
            )
        else:
            decision = "promoted" if outcome.promoted else "not promoted"
            run_folder.results.add(
                f"{network} {decision}: {outcome.reason}",
                promoted={network: {"promoted": outcome.promoted, "reason": outcome.reason}},
            )
            run_folder.log.event(
                f"network {decision}", network=network, train=trained.name, reason=outcome.reason
            )
            yield outcome
    if failures:
        raise PromotionError("\n".join(failures))


class _Promotion:
    """The decision about one network, whose candidate is the current version of `train`."""

    def __init__(
        self, run_folder: RunFolder, network: str, upstream: Mapping[str, Version], *, force: bool
    ) -> None:
        """Load the features and the registry of a network; `upstream` are versions by stage."""
        self._run_folder = run_folder
        self._network = network
        self._upstream = upstream
        self._trained = upstream["train"]
        self._dataset = FeatureDataset.load(upstream["features"].folder)
        self._registry = Registry(run_folder.config.run_dir, network)
        self._force = force

    def decide(self) -> PromotionOutcome:
        """Decide about the candidate, and publish it in the registry if it is promoted.

        A digest of the model files tells equal models. In this order:
            - The candidate is the model in use: it is refused, or published anew if that is
              damaged.
            - It was rolled back before: it is refused, unless forced.
            - Else the comparison decides, unless forced.
        """
        candidate = _read(self._network, self._trained.folder / self._network, self._dataset)
        advice = " Train again with `train --force`, or use `promote --force`."
        _check_unseen(candidate, self._dataset, advice=advice, force=self._force)
        # This also repairs the pointer to the model in use, if it is missing.
        current = self._registry.recovered()
        digest = model_digest(self._trained.files, f"{self._network}/model")
        if current is not None and model_digest(current.files) == digest:
            return self._keep_or_repair(current, digest)
        if digest in self._registry.withdrawn_digests() and not self._force:
            return self._refused("it was rolled back; --force promotes it anyway")

        # Candidate and model in use each predict the whole test split.
        num_predictions = 2 * self._dataset.num_rows("test")
        label = f"promote {self._network}"
        with Bar(self._run_folder.console, label, "events", num_predictions) as bar:
            # The comparison runs also if forced, so that its result is recorded.
            verdict = self._compare(candidate, current, bar)
        if not (verdict.is_better or self._force):
            is_compared = verdict.improvement is not None
            advice = "" if is_compared else " `promote --force` puts the new one in use anyway."
            return self._refused(f"{verdict.reason}{advice}")
        self._publish(digest, verdict.improvement)
        prefix = "" if verdict.is_better else "--force, although "
        return self._promoted(f"{prefix}{verdict.reason}")

    def _promoted(self, reason: str) -> PromotionOutcome:
        return PromotionOutcome(self._network, promoted=True, reason=reason)

    def _refused(self, reason: str) -> PromotionOutcome:
        return PromotionOutcome(self._network, promoted=False, reason=reason)

    def _keep_or_repair(self, current: PromotedModel, digest: str) -> PromotionOutcome:
        """Refuse a candidate that equals the model in use, unless the latter's files are damaged.

        Damaged files are replaced: the model is published again as a new version, and the old
        folder goes.
        """
        if not changed_files(current.folder, current.files):
            return self._refused(f"it is in use already, as {current.name}")
        self._publish(digest, None)
        # The new version is in use by now.
        own_folders.remove_unclaimed(current.folder)
        return self._promoted(f"files of {current.name}, the same model, were gone or changed")

    def _compare(
        self, candidate: FoundModel, current: PromotedModel | None, bar: Bar
    ) -> _PromotionVerdict:
        """Compare a candidate with the floor, then with the model in use.

        It is better if the decrease of the mean cross-entropy is above `promote.min_sigma` times
        its standard error. Both are computed on the test events of the classes that can be
        measured.
        """
        config = self._run_folder.config
        task = task_of_run(config, self._dataset.classes, self._upstream)
        events = _scored_events(candidate, self._dataset, task, bar)
        try:
            # An empty reason means that the candidate reaches the floor.
            reason = shortfall(events, task, config.promote.at_least)
        except ModelError as error:
            reason = f"it cannot be measured: {error}"
        if reason:
            return _PromotionVerdict(is_better=False, reason=f"{reason.removesuffix('.')}.")
        if current is None:
            return _PromotionVerdict(is_better=True, reason="there was none in use")
        try:
            events_in_use = self._score_in_use(current, task, bar)
            measurable_in_use, _, _ = measurable_events(events_in_use, task)
            measurable_new, _, _ = measurable_events(events, task)
            # Restricted to measurable classes, both hold the same events in the same order.
            gain = improvement(measurable_in_use, measurable_new)
        except (ModelError, FeatureError) as error:
            return _PromotionVerdict(
                is_better=False, reason=f"it cannot be compared with {current.name}: {error}"
            )
        needed_sigmas = config.promote.min_sigma
        direction = "lower" if gain.value >= 0 else "higher"
        difference = with_error(abs(gain.value), gain.error, " +- ")
        return _PromotionVerdict(
            is_better=gain.value > needed_sigmas * gain.error,
            reason=(
                f"its mean cross-entropy on {len(measurable_new.labels)} test events is "
                f"{direction} than that of {current.name} by {difference}; a decrease by "
                f"{needed_sigmas:g} standard errors is needed"
            ),
            improvement=gain,
        )

    def _score_in_use(self, current: PromotedModel, task: EvaluationTask, bar: Bar) -> ScoredEvents:
        """Return the test events with the scores of the model in use.

        Raises:
            ModelError: The model is damaged, so another one may replace it, is of other code of a
                plugin, or has seen the events.
        """
        try:
            folder = current.verified().folder
            model = _read(current.name, folder, self._dataset)
        except DamagedOutputError as cause:
            raise ModelError(str(cause)) from cause
        except PluginCodeError as cause:
            # The advice there, to train again, has been followed: the candidate is of that code.
            raise ModelError(f"{cause.difference}.") from cause
        _check_unseen(model, self._dataset)
        return _scored_events(model, self._dataset, task, bar)

    def _publish(self, digest: str, gain: Estimate | None) -> None:
        """Copy the trained model, and its ONNX file if any, to a new version of the registry.

        The manifest comes last and makes the version the model in use. `gain` is the improvement
        over the former model; None without a comparison.
        """
        registry, network = self._registry, self._network
        folder = registry.next_folder(digest)
        onnx_file = self._exported_file()
        manifest = {
            "network": network,
            "train": self._trained.name,
            "promoted": now(),
            "improvement": None if gain is None else gain._asdict(),
            "code_version": code_version(),
        }
        try:
            # A killed command may have left newer models that were never in use.
            registry.remove_unpublished()
            registry.create(folder)
            # The claim keeps other commands from removing the unfinished folder.
            with claimed([folder]):
                shutil.copytree(self._trained.folder / network / "model", folder / "model")
                copy_record(self._trained.folder / network, folder)
                if onnx_file is not None:
                    shutil.copyfile(onnx_file, folder / "model.onnx")
                registry.commit(folder, manifest)
        except OSError as cause:
            raise cannot_write(folder, cause) from cause

    def _exported_file(self) -> Path | None:
        """Return the ONNX file of the network, if `export` converted this training; else None.

        The manifest of `export` holds a digest of the training that it read, which must be that of
        ours.
        """
        exported = self._run_folder.store("export").current()
        if exported is None:
            return None
        read_training = exported.made_from.inputs.get("train")
        digest = content_read(STAGE_OF["export"], self._trained)
        if read_training is None or read_training.digest != digest:
            return None
        exported.verified([f"{self._network}/model.onnx"])
        return exported.folder / self._network / "model.onnx"


def _read(name: str, folder: Path, dataset: FeatureDataset) -> FoundModel:
    """Load a model; one for other classes or features than those of the dataset is an error."""
    model = read_trained(name, folder)
    check_classes(model, dataset.classes)
    check_definitions([model], dataset.definitions, dataset.reading)
    check_plugin_code([model], dataset)
    check_particles([model], dataset.reading)
    return model


def _check_unseen(
    model: FoundModel, dataset: FeatureDataset, *, advice: str = "", force: bool = False
) -> None:
    """Refuse a model that was trained on test events, or, unless forced, may have been.

    `advice` ends the message about unknown training events.

    Raises:
        ModelError: It has seen some of them, or its training events are unknown.
    """
    unknown = check_unseen_events([model], dataset.files("test"))
    if unknown and not force:
        raise ModelError(
            f"the training events of {model.candidate.name} are unknown, and test events may be "
            f"among them: its run.json, or the features that it names, are gone or damaged.{advice}"
        )


def _scored_events(
    model: FoundModel, dataset: FeatureDataset, task: EvaluationTask, bar: Bar
) -> ScoredEvents:
    """Predict the test split with a model; returns its events with their scores."""
    predictions = predict(
        model.candidate.model, dataset.files("test"), also=["hlf"], on_events=bar.add
    )
    return task.scored(predictions)


def rollback(run_folder: RunFolder, network: str) -> tuple[str, str]:
    """Put the previous model back in use.

    The model in use is marked as withdrawn; `promote` promotes it again only with `--force`.

    Returns:
        The names of the withdrawn version and of the version now in use.

    Raises:
        ConfigError: There is no such network.
        MissingInputError: There is no earlier model.
    """
    if network not in NETWORKS:
        raise ConfigError(f"rollback: there is no network '{network}'.{nearest(network, NETWORKS)}")
    with run_folder.locked():
        registry = Registry(run_folder.config.run_dir, network)
        current = registry.recovered()
        previous = None if current is None else _previous(registry, current)
        if current is None or previous is None:
            raise MissingInputError(
                f"there is no previous model of '{network}' in {registry.folder}; nothing to roll "
                "back to."
            )
        # A damaged model must not be put in use.
        previous.verified()
        registry.withdraw(current, now())
        registry.point_to(previous.name)
        run_folder.log.event(
            "network rolled back", network=network, withdrawn=current.name, in_use=previous.name
        )
        run_folder.write_metrics(failed=None)
        run_folder.results.add(
            f"{network}: {previous.name} in use instead of {current.name}",
            rolled_back={network: {"withdrawn": current.name, "in_use": previous.name}},
        )
        return current.name, previous.name


def _previous(registry: Registry, current: PromotedModel) -> PromotedModel | None:
    """Return the newest promoted version before the current one, without withdrawn ones."""
    earlier = [name for name in registry.promoted() if number_of(name) < number_of(current.name)]
    if not earlier:
        return None
    return registry.version(earlier[-1])
