"""`promote` puts a trained network in use if it is better than the one in use; `rollback` restores the previous one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from features.dataset import FeatureDataset
from features.errors import FeatureError
from hep_core.integrity import DamagedOutputError
from models.errors import ModelError
from models.evaluation.bootstrap import Estimate
from models.evaluation.floor import shortfall
from models.evaluation.improvement import improvement
from models.evaluation.measurements import EvaluationTask, measurable
from models.evaluation.rounding import with_error
from models.evaluation.scored_events import ScoredEvents
from models.networks.registry import NETWORKS
from models.prediction import predict
from pipeline.config import Config
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
from pipeline.runs.fingerprint import Fingerprint
from pipeline.runs.model_registry import Registry, model_digest
from pipeline.runs.outputs import changed_files
from pipeline.runs.own_folders import claimed
from pipeline.runs.provenance import code_version, now
from pipeline.runs.seen_events import copy_record
from pipeline.runs.store import Version, number_of
from pipeline.runs.trained_models import (
    FoundModel,
    read_trained,
    refuse_other_classes,
    refuse_other_features,
    refuse_seen_events,
)
from pipeline.stages.evaluate import Evaluate, task_of
from pipeline.stages.table import STAGE_OF
from pipeline.terminal.progress import Bar
from training.threads import use_threads


class PromotionOutcome(NamedTuple):
    """Decision about the candidate of a network."""

    network: str
    promoted: bool
    reason: str


def promote(run_folder: RunFolder, *, force: bool = False) -> Iterator[PromotionOutcome]:
    """Compare each network of the current training with the model in use, and promote the better ones.

    Both models predict the raw features of the same test events. A candidate that reaches `promote.at_least` is
    promoted if there is no model in use, or if the mean cross-entropy improves by more than `promote.min_sigma`
    standard errors. If the two cannot be compared, as after a change of the features, the model in use stays.

    `force` promotes them independent of floor and comparison, also if there is none.
    """
    use_threads(run_folder.config.train.threads)
    with run_folder.locked():
        upstream = run_folder.upstream(Evaluate(), command="promote")
        try:
            yield from _promote_each(run_folder, upstream, force=force)
        except BaseException:
            run_folder.write_metrics(failed="promote")
            raise
        run_folder.write_metrics(failed=None)


def _promote_each(
    run_folder: RunFolder, upstream: Mapping[str, Version], *, force: bool
) -> Iterator[PromotionOutcome]:
    trained = upstream["train"]
    dataset = FeatureDataset.load(upstream["features"].folder)
    failed: list[str] = []
    for network in trained.manifest["counters"]["networks"]:
        try:
            with Bar(
                run_folder.console, f"promote {network}", "events", 2 * dataset.num_rows("test")
            ) as bar:
                verdict = PromotionOutcome(
                    network, *_promote(run_folder, network, upstream, dataset, bar, force=force)
                )
        except DamagedOutputError:
            raise
        except USER_ERRORS as error:
            failed.append(f"{network}: {error}")
            run_folder.results.add(f"{network} failed", promoted={network: {"failed": str(error)}})
            run_folder.log.event(
                "promotion failed", network=network, train=trained.name, message=str(error)
            )
        else:
            outcome = "promoted" if verdict.promoted else "not promoted"
            details = {"promoted": verdict.promoted, "reason": verdict.reason}
            run_folder.results.add(
                f"{network} {outcome}: {verdict.reason}", promoted={network: details}
            )
            event = f"network {outcome}"
            run_folder.log.event(event, network=network, train=trained.name, reason=verdict.reason)
            yield verdict
    if failed:
        raise PromotionError("\n".join(failed))


def _promote(
    run_folder: RunFolder,
    network: str,
    upstream: Mapping[str, Version],
    dataset: FeatureDataset,
    bar: Bar,
    *,
    force: bool,
) -> tuple[bool, str]:
    """Whether a network was promoted, and why."""
    trained = upstream["train"]
    candidate = _read(network, trained.folder / network, dataset)
    _refuse_seen_events(candidate, dataset, force=force)
    registry = Registry(run_folder.config.run_dir, network)
    current = registry.recovered()
    digest = model_digest(trained.files, f"{network}/model")
    if current is not None and model_digest(current.files) == digest:
        if not changed_files(current.folder, current.files):
            return False, f"it is in use already, as {current.name}"
        _publish(run_folder, registry, trained, digest, None)
        own_folders.remove(current.folder)
        return True, f"files of {current.name}, the same model, were gone or changed"
    if not force and digest in registry.withdrawn_digests():
        return False, "it was rolled back; --force promotes it anyway"
    task = task_of(run_folder.config, dataset.classes, upstream)
    events = _scored_events(candidate, dataset, task, bar)
    verdict = _below_floor(run_folder.config, events, task)
    if verdict is None:
        verdict = _compared(run_folder.config, events, current, dataset, task, bar)
    if not (verdict.is_better or force):
        advice = "" if verdict.improvement else " `promote --force` puts it in use anyway."
        return False, f"{verdict.reason}{advice}"
    _publish(run_folder, registry, trained, digest, verdict.improvement)
    return True, verdict.reason if verdict.is_better else f"--force, although {verdict.reason}"


class _PromotionVerdict(NamedTuple):
    """Whether a candidate is better than what is in use, and why."""

    is_better: bool
    reason: str
    improvement: Estimate | None = None
    """None without a comparison."""


def _below_floor(
    config: Config, events: ScoredEvents, task: EvaluationTask
) -> _PromotionVerdict | None:
    """The verdict about a candidate that does not reach `promote.at_least`; None about one that does."""
    try:
        reason = shortfall(events, task, config.promote.at_least)
    except ModelError as error:
        reason = f"it cannot be measured: {error}"
    if not reason:
        return None
    return _PromotionVerdict(
        is_better=False, reason=reason if reason.endswith(".") else f"{reason}."
    )


def _compared(
    config: Config,
    events: ScoredEvents,
    current: Version | None,
    dataset: FeatureDataset,
    task: EvaluationTask,
    bar: Bar,
) -> _PromotionVerdict:
    """The verdict about a candidate, whose test events are given, beside the model in use."""
    if current is None:
        return _PromotionVerdict(is_better=True, reason="there was none in use")
    try:
        in_use = _read("in-use", _undamaged(current).folder, dataset)
        _refuse_seen_events(in_use, dataset)
        before, _, _ = measurable(_scored_events(in_use, dataset, task, bar), task)
        after, _, _ = measurable(events, task)
        gain = improvement(before, after)
    except (ModelError, FeatureError) as error:
        return _PromotionVerdict(
            is_better=False, reason=f"it cannot be compared with {current.name}: {error}"
        )
    needed = config.promote.min_sigma
    direction = "lower" if gain.value >= 0 else "higher"
    difference = with_error(abs(gain.value), gain.error, " +- ")
    reason = (
        f"its mean cross-entropy on {len(after.labels)} test events is {direction} than that of {current.name} by "
        f"{difference}; a decrease by {needed:g} standard errors is needed"
    )
    return _PromotionVerdict(
        is_better=gain.value > needed * gain.error, reason=reason, improvement=gain
    )


def _undamaged(current: Version) -> Version:
    """The model in use; a ModelError if it is damaged, so that another may replace it."""
    try:
        return current.verified()
    except DamagedOutputError as cause:
        raise ModelError(str(cause)) from cause


def _scored_events(
    model: FoundModel, dataset: FeatureDataset, task: EvaluationTask, bar: Bar
) -> ScoredEvents:
    """The test events with the scores of a model."""
    return task.scored(
        predict(model.candidate.model, dataset.files("test"), also=["hlf"], on_events=bar.add)
    )


def rollback(run_folder: RunFolder, network: str) -> tuple[str, str]:
    """Put the previous model back in use; returns the names of the withdrawn version and the version in use.

    `promote` promotes the withdrawn model only with --force.
    """
    if network not in NETWORKS:
        raise ConfigError(f"rollback: there is no network '{network}'.{nearest(network, NETWORKS)}")
    with run_folder.locked():
        registry = Registry(run_folder.config.run_dir, network)
        current = registry.recovered()
        earlier = [
            name
            for name in registry.promoted()
            if current and number_of(name) < number_of(current.name)
        ]
        if current is None or not earlier:
            raise MissingInputError(
                f"there is no previous model of '{network}' in {registry.folder}; nothing to roll back to."
            )
        Version(
            earlier[-1], registry.folder / earlier[-1], registry.manifest_of(earlier[-1]) or {}
        ).verified()
        registry.withdraw(current, now())
        registry.point_to(earlier[-1])
        run_folder.log.event(
            "network rolled back", network=network, withdrawn=current.name, in_use=earlier[-1]
        )
        run_folder.write_metrics(failed=None)
        words = f"{network}: {earlier[-1]} in use instead of {current.name}"
        run_folder.results.add(
            words, rolled_back={network: {"withdrawn": current.name, "in_use": earlier[-1]}}
        )
        return current.name, earlier[-1]


def _read(name: str, folder: Path, dataset: FeatureDataset) -> FoundModel:
    """A model for the classes and features of a dataset."""
    found = read_trained(name, folder)
    refuse_other_classes(found, dataset.classes)
    refuse_other_features([found], dataset.definitions)
    return found


def _refuse_seen_events(model: FoundModel, dataset: FeatureDataset, *, force: bool = False) -> None:
    """Refuse a model that was trained on test events, or, unless forced, may have been."""
    unknown = refuse_seen_events([model], dataset.files("test"))
    if unknown and not force:
        raise ModelError(
            f"the training events of {model.candidate.name} are unknown, and test events may be among them: its "
            f"run.json or the features that it names are missing. Train again, or use `promote --force`."
        )


def _publish(
    run_folder: RunFolder, registry: Registry, trained: Version, digest: str, found: Estimate | None
) -> None:
    folder, network = registry.next_folder(digest), registry.stage
    if exported := run_folder.store("export").current():
        # An equal training has the same networks.
        read = Fingerprint.from_json(exported.made_from).inputs.get("train")
        if read is None or read.digest != STAGE_OF["export"].content_read(trained):
            exported = None
        else:
            exported.verified([f"{network}/model.onnx"])
    try:
        registry.remove_unpublished()
        registry.begin(folder)
        with claimed([folder]):
            shutil.copytree(trained.folder / network / "model", folder / "model")
            copy_record(trained.folder / network, folder)
            if exported is not None:
                shutil.copyfile(exported.folder / network / "model.onnx", folder / "model.onnx")
            registry.commit(
                folder,
                {
                    "network": network,
                    "train": trained.name,
                    "promoted": now(),
                    "improvement": None if found is None else found._asdict(),
                    "code_version": code_version(),
                },
            )
    except OSError as cause:
        raise cannot_write(folder, cause) from cause
