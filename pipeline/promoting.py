"""`promote` and `rollback`: which trained model is in use."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, get_args

from features.dataset import FeatureDataset
from features.errors import FeatureError
from models.errors import ModelError
from models.improvement import improvement
from models.measure import Events
from models.metrics import Estimate
from models.predict import predict
from models.settings import ModelName
from pipeline.errors import USER_ERRORS, ConfigError, MissingInputError, PromotionError, RunFolderError, nearest
from pipeline.models_on_disk import FoundModel, find_models, refuse_other_features, refuse_seen_events
from pipeline.provenance import code_version, now
from pipeline.registry import Registry
from pipeline.runner import Runner
from pipeline.stages.evaluate import Evaluate
from pipeline.store import StageStore, Version


class Verdict(NamedTuple):
    """What became of a candidate."""

    network: str
    promoted: bool
    reason: str


class Promoter(Runner):
    """Compares trained models with those in use, and puts better ones in their place."""

    def promote(self, *, force: bool = False) -> Iterator[Verdict]:
        """Look at each network of the current training, one after the other.

        Both models predict the raw features of the same test events. A candidate is promoted where there is no model
        in use, or where the mean cross-entropy improves by more than `promote.min_sigma` standard errors. Where the
        two cannot be compared, as after a change of the features, the one in use stays.

        Args:
            force: Promote whatever the comparison says, or where there cannot be any.

        Raises:
            MissingInputError: There is no trained model, or it does not belong to the current features.
            PromotionError: A candidate cannot be read or promoted; the other networks were looked at all the same.
        """
        with self._locked():
            try:
                yield from self._promote_each(force=force)
            except BaseException:
                self.write_metrics(failed="promote")
                raise
            self.write_metrics(failed=None)

    def rollback(self, network: str) -> tuple[str, str]:
        """Put the model before the one in use back; returns the names of both versions, the old one last.

        The one that was in use is not promoted again, unless forced.

        Raises:
            ConfigError: There is no network of that name.
            MissingInputError: There is no earlier one.
        """
        if network not in get_args(ModelName):
            raise ConfigError(f"rollback: there is no network '{network}'.{nearest(network, get_args(ModelName))}")
        with self._locked():
            registry = Registry(self.config.run_dir, network)
            current = registry.recovered()
            earlier = [] if current is None else [name for name in registry.promoted() if name < current.name]
            if current is None or not earlier:
                raise MissingInputError(
                    f"there is no model of '{network}' in {registry.folder} before the one in use; "
                    f"nothing to go back to."
                )
            registry.withdraw(current, now())
            registry.point_to(earlier[-1])
            self.log.event("network rolled back", network=network, withdrawn=current.name, in_use=earlier[-1])
            self.write_metrics(failed=None)
            return current.name, earlier[-1]

    def _promote_each(self, *, force: bool) -> Iterator[Verdict]:
        upstream = self._upstream(Evaluate())
        trained = upstream["train"]
        dataset = FeatureDataset.load(upstream["features"].folder)
        failed: list[str] = []
        for network in trained.manifest["counters"]["networks"]:
            try:
                verdict = self._promote(network, trained, dataset, force=force)
            except USER_ERRORS as error:
                failed.append(f"{network}: {error}")
                self.log.event("promotion failed", network=network, train=trained.name, message=str(error))
            else:
                event = "network promoted" if verdict.promoted else "network not promoted"
                self.log.event(event, network=network, train=trained.name, reason=verdict.reason)
                yield verdict
        if failed:
            raise PromotionError("\n".join(failed))

    def _promote(self, network: str, trained: Version, dataset: FeatureDataset, *, force: bool) -> Verdict:
        (candidate,) = find_models([f"{network}={trained.folder / network}"], dataset.classes)
        refuse_other_features([candidate], dataset.definitions)
        refuse_seen_events([candidate], dataset.files("test"))
        registry = Registry(self.config.run_dir, network)
        current = registry.recovered()
        digest = _digest(trained.folder / network / "model")
        if current is not None and current.manifest["digest"] == digest:
            return Verdict(network, promoted=False, reason=f"it is in use already, as {current.name}")
        if not force and digest in registry.withdrawn_digests():
            return Verdict(network, promoted=False, reason="it was rolled back; --force promotes it all the same")
        found: Estimate | None = None
        if current is None:
            is_better, reason = True, "there was none in use"
        else:
            try:
                found = self._compare(candidate, current, dataset)
            except (ModelError, FeatureError) as error:
                is_better, reason = False, f"it cannot be compared with {current.name}: {error}"
            else:
                is_better, reason = self._decide(found, current, dataset.num_rows("test"))
        if not (is_better or force):
            advice = "" if found else " `promote --force` puts it in use all the same."
            return Verdict(network, promoted=False, reason=reason + advice)
        self._publish(registry, network, trained, digest, found)
        return Verdict(network, promoted=True, reason=reason if is_better else f"--force, although {reason}")

    def _decide(self, found: Estimate, current: Version, num_events: int) -> tuple[bool, str]:
        """Whether an improvement is enough, and the words for it."""
        needed = self.config.promote.min_sigma
        how = "lower" if found.value >= 0 else "higher"
        return found.value > needed * found.error, (
            f"its mean cross-entropy on {num_events} test events is {how} than that of {current.name} "
            f"by {abs(found.value):.4f} +- {found.error:.4f}; lower by {needed:g} standard errors is asked for"
        )

    def _compare(self, candidate: FoundModel, current: Version, dataset: FeatureDataset) -> Estimate:
        """How much better a candidate is than the model in use."""
        (old,) = find_models([f"in-use={current.folder}"], dataset.classes)
        refuse_other_features([old], dataset.definitions)
        files = dataset.files("test")
        refuse_seen_events([old], files)
        before, after = (Events.of(predict(each.candidate.model, files, also=["hlf"])) for each in (old, candidate))
        return improvement(after.labels, after.weights, before.probabilities, after.probabilities)

    def _publish(self, registry: Registry, network: str, trained: Version, digest: str, found: Estimate | None) -> None:
        folder = registry.next_folder(digest)
        try:
            registry.remove_unpublished()
            registry.begin(folder)
            shutil.copytree(trained.folder / network / "model", folder / "model")
            shutil.copyfile(trained.folder / network / "run.json", folder / "run.json")
            exported = StageStore(self.config.run_dir, "export").current()
            if exported is not None and exported.manifest["upstream"]["train"] == trained.name:
                shutil.copyfile(exported.folder / network / "model.onnx", folder / "model.onnx")
            registry.commit(
                folder,
                {
                    "network": network,
                    "digest": digest,
                    "train": trained.name,
                    "promoted": now(),
                    "improvement": None if found is None else found._asdict(),
                    "code_version": code_version(),
                },
            )
        except OSError as cause:
            raise RunFolderError(f"{folder} cannot be written ({cause}). Check space and permissions.") from cause


def _digest(folder: Path) -> str:
    """Of a model's content."""
    digest = hashlib.sha256()
    for name in ("model.json", "weights.pt"):
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()
