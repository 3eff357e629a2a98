"""`promote` and `rollback`: which trained model is in use.

<run_dir>/registry/<network>/current.json          the pointer to the model in use
<run_dir>/registry/<network>/0003-5be21f02/        a model that was promoted, with model.onnx and manifest.json
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import NamedTuple

from features.dataset import FeatureDataset
from models.improvement import improvement
from models.measure import Events
from models.metrics import Estimate
from models.predict import predict
from pipeline.errors import MissingInputError, RunFolderError
from pipeline.models_on_disk import FoundModel, find_models, refuse_other_features, refuse_seen_events
from pipeline.provenance import code_version, now
from pipeline.runner import Runner
from pipeline.stages.evaluate import Evaluate
from pipeline.store import REGISTRY, StageStore, Version


class Verdict(NamedTuple):
    """What became of a candidate."""

    network: str
    promoted: bool
    reason: str


class Promoter(Runner):
    """Compares trained models with those in use, and puts better ones in their place."""

    def promote(self, *, force: bool = False) -> list[Verdict]:
        """Look at each network of the current training.

        Both models predict the raw features of the same test events. A candidate is promoted where there is no model
        in use, or where the mean cross-entropy improves by more than `promote.min_sigma` standard errors.

        Args:
            force: Promote whatever the comparison says.

        Raises:
            MissingInputError: There is no trained model, or it does not belong to the current features.
            ModelError: A model cannot be read, or was trained on test events, or the two cannot be compared.
        """
        with self._locked():
            upstream = self._upstream(Evaluate())
            dataset = FeatureDataset.load(upstream["features"].folder)
            networks = upstream["train"].manifest["counters"]["networks"]
            verdicts = []
            for name in networks:
                verdict = self._promote(name, upstream["train"], dataset, force=force)
                event = "network promoted" if verdict.promoted else "network not promoted"
                self.log.event(event, network=name, train=upstream["train"].name, reason=verdict.reason)
                verdicts.append(verdict)
            return verdicts

    def rollback(self, network: str) -> tuple[str, str]:
        """Put the model before the one in use back; returns the names of both versions, the old one last.

        The one that was in use is not promoted again, unless forced.

        Raises:
            MissingInputError: There is no earlier one.
        """
        with self._locked():
            store = self._store(network)
            current = store.current()
            earlier = [] if current is None else [name for name in store.complete() if name < current.name]
            earlier = [name for name in earlier if "withdrawn" not in (store.manifest_of(name) or {})]
            if current is None or not earlier:
                raise MissingInputError(
                    f"there is no model of '{network}' in {store.folder} before the one in use; nothing to go back to."
                )
            store.rewrite_manifest(current, current.manifest | {"withdrawn": now()})
            store.point_to(max(earlier))
            self.log.event("network rolled back", network=network, withdrawn=current.name, in_use=max(earlier))
            return current.name, max(earlier)

    def _promote(self, network: str, trained: Version, dataset: FeatureDataset, *, force: bool) -> Verdict:
        (candidate,) = find_models([f"{network}={trained.folder / network}"], dataset.classes)
        refuse_other_features([candidate], dataset.definitions)
        store = self._store(network)
        current = store.current()
        digest = _digest(trained.folder / network / "model")
        if current is not None and current.manifest["digest"] == digest:
            return Verdict(network, promoted=False, reason=f"it is in use already, as {current.name}")
        if not force and digest in _withdrawn(store):
            return Verdict(network, promoted=False, reason="it was rolled back; --force promotes it all the same")
        found = None if current is None else self._compare(candidate, current, dataset)
        needed = self.config.promote.min_sigma
        reason = "there was none in use"
        if current is not None and found is not None:
            how, test = "lower" if found.value >= 0 else "higher", dataset.num_rows("test")
            reason = (
                f"its mean cross-entropy on {test} test events is {how} than that of {current.name} "
                f"by {abs(found.value):.4f} +- {found.error:.4f}; lower by {needed:g} standard errors is asked for"
            )
        is_better = found is None or found.value > needed * found.error
        if not (is_better or force):
            return Verdict(network, promoted=False, reason=reason)
        self._publish(store, network, trained, digest, found)
        return Verdict(network, promoted=True, reason=reason if is_better else f"--force, although {reason}")

    def _compare(self, candidate: FoundModel, current: Version, dataset: FeatureDataset) -> Estimate:
        """How much better a candidate is than the model in use."""
        (old,) = find_models([f"in-use={current.folder}"], dataset.classes)
        refuse_other_features([old], dataset.definitions)
        files = dataset.files("test")
        refuse_seen_events([candidate, old], files)
        before, after = (Events.of(predict(each.candidate.model, files, also=["hlf"])) for each in (old, candidate))
        return improvement(after.labels, after.weights, before.probabilities, after.probabilities)

    def _publish(self, store: StageStore, network: str, trained: Version, digest: str, found: Estimate | None) -> None:
        folder = store.next_folder(digest)
        try:
            _remove_unpublished(store)
            store.begin(folder)
            shutil.copytree(trained.folder / network / "model", folder / "model")
            shutil.copyfile(trained.folder / network / "run.json", folder / "run.json")
            exported = StageStore(self.config.run_dir, "export").current()
            if exported is not None and exported.manifest["upstream"]["train"] == trained.name:
                shutil.copyfile(exported.folder / network / "model.onnx", folder / "model.onnx")
            store.commit(
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

    def _store(self, network: str) -> StageStore:
        return StageStore(self.config.run_dir / REGISTRY, network)


def _remove_unpublished(store: StageStore) -> None:
    """Remove models newer than the one in use, but for withdrawn ones: a kill came before they were in use.

    Left there, `rollback` would take them for models that were in use before.
    """
    current = store.current()
    for name in store.complete():
        if current is not None and name > current.name and "withdrawn" not in (store.manifest_of(name) or {}):
            shutil.rmtree(store.folder / name)


def _withdrawn(store: StageStore) -> set[str]:
    """Digests of models that were rolled back."""
    manifests = [store.manifest_of(name) or {} for name in store.complete()]
    return {manifest["digest"] for manifest in manifests if "withdrawn" in manifest}


def _digest(folder: Path) -> str:
    """Of a model's content."""
    digest = hashlib.sha256()
    for name in ("model.json", "weights.pt"):
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()
