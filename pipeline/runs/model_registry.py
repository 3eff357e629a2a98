"""The model registry: all models of a run folder that are or were in use.

<run_dir>/registry/<network>/current.json          the pointer to the model in use
<run_dir>/registry/<network>/0003-5be21f02/        a model that was promoted, with model.onnx and
                                                   manifest.json
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from pipeline.errors import ConfigError, MissingInputError, nearest
from pipeline.runs import own_folders
from pipeline.runs.manifest import Manifest, ModelManifest, read_manifest
from pipeline.runs.outputs import EarlierFiles, OutputFile, digest_of, written_files
from pipeline.runs.state_files import damaged
from pipeline.runs.version import MANIFEST, PromotedModel
from pipeline.runs.version_store import VersionStore, listed, number_of

#: Folder of the registry in the run folder.
REGISTRY: Final = "registry"


def model_digest(files: Iterable[OutputFile], folder: str = "model") -> str:
    """Return one digest of the bytes of all files of a model.

    Args:
        files: The files of a version or of a promoted model.
        folder: The folder of the model there. Its name does not count, so the same model has the
            same digest in a training and in the registry.
    """
    digests = {
        file.path.removeprefix(folder): file.digest
        for file in files
        if file.path.startswith(f"{folder}/")
    }
    return digest_of(digests)


class Registry(VersionStore[PromotedModel]):
    """The models of one network that were promoted."""

    def __init__(self, run_dir: Path, network: str) -> None:
        registry_dir = run_dir / REGISTRY
        folder = registry_dir / network
        super().__init__(network, folder, [registry_dir, folder])

    @classmethod
    def of_all_networks(cls, run_dir: Path) -> list[Registry]:
        """The registries of all networks with promoted models, by name."""
        folders = [path for path in listed(run_dir / REGISTRY) if path.is_dir()]
        return [cls(run_dir, folder.name) for folder in folders]

    @classmethod
    def model_in_use(cls, run_dir: Path, network: str | None = None) -> PromotedModel:
        """Return the promoted model that is in use, after a check of its files.

        Args:
            run_dir: The run folder.
            network: Whose model; only needed if models of several networks are in use.

        Raises:
            DamagedOutputError: A file of the model is gone or changed.
            MissingInputError: No model is in use.
            ConfigError: Several models are in use, or none of this network.
        """
        models: dict[str, PromotedModel] = {}
        for registry in cls.of_all_networks(run_dir):
            model = registry.current()
            if model is not None:
                models[registry.name] = model
        if not models:
            raise MissingInputError(
                f"no model is in use in {run_dir}. Name a training folder or an ONNX file "
                f"(`--model`), or run `python -m pipeline promote`."
            )
        if network is None and len(models) > 1:
            names = ", ".join(models)
            raise ConfigError(f"several models are in use: {names}. Name one (`--network`).")
        if network is not None and network not in models:
            raise ConfigError(f"no model of '{network}' is in use.{nearest(network, models)}")
        name = network if network is not None else next(iter(models))
        return models[name].verified()

    @property
    def _remedy(self) -> str:
        return (
            f"Remove {self.pointer} and run `promote`, which puts the newest promoted model in use."
        )

    def _read_version(self, name: str) -> PromotedModel | None:
        manifest = self._read_manifest(name)
        if not isinstance(manifest, ModelManifest):
            return None
        return PromotedModel(name, self.folder / name, manifest)

    def _read_manifest(self, name: str) -> ModelManifest | Manifest:
        path = self.folder / name / MANIFEST
        manifest = read_manifest(path, ModelManifest, remedy=self._remedy)
        if isinstance(manifest, ModelManifest) and manifest.network != self.name:
            raise damaged(path, f"network: it is that of '{manifest.network}'", self._remedy)
        return manifest

    def promoted(self) -> list[str]:
        """Names of the readable models that were not withdrawn, the oldest first."""
        return [model.name for model in self._models() if model.manifest.withdrawn is None]

    def withdrawn_digests(self) -> set[str]:
        """Return the digests of the models that were rolled back, as `model_digest` makes them."""
        return {
            model_digest(model.files)
            for model in self._models()
            if model.manifest.withdrawn is not None
        }

    def _models(self) -> list[PromotedModel]:
        models = [self.version(name) for name in self.complete()]
        return [model for model in models if model is not None]

    def commit(self, folder: Path, manifest: Mapping[str, Any]) -> PromotedModel:
        """Put a model in use: flush its files to disk, write its manifest, set the pointer.

        Args:
            folder: The folder of the model, with all its files.
            manifest: All keys of the manifest but those about the files.
        """
        without = {MANIFEST, own_folders.MARKER}
        outputs = written_files(folder, without=without, earlier=EarlierFiles(self.folder, {}))
        return self.publish(folder, manifest, outputs)

    def withdraw(self, model: PromotedModel, when: str) -> None:
        """Mark a model as rolled back."""
        self.update_manifest(model, withdrawn=when)

    def recovered(self) -> PromotedModel | None:
        """Return the model in use; a missing pointer is first set to the newest promoted model.

        The pointer is the file that names the model in use. It is missing after a kill just before
        it was written, or if somebody removed a damaged one.
        """
        promoted = self.promoted()
        if promoted and not self.pointer.exists():
            self.point_to(promoted[-1])
        return self.current()

    def remove_unpublished(self) -> None:
        """Remove models newer than the one in use, except those that were rolled back.

        A kill came before they were in use. `rollback` would take them for earlier models.
        """
        current = self.current()
        if current is None:
            return
        for name in self.promoted():
            folder = self.folder / name
            if number_of(name) > number_of(current.name) and self.may_remove(folder):
                own_folders.remove_unclaimed(folder)
