"""The model registry: all models of a run folder that are or were in use.

<run_dir>/registry/<network>/current.json          the pointer to the model in use
<run_dir>/registry/<network>/0003-5be21f02/        a model that was promoted, with model.onnx and manifest.json
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Final

from pipeline.errors import ConfigError, MissingInputError, nearest
from pipeline.runs import own_folders
from pipeline.runs.manifest import ModelManifest, StageManifest
from pipeline.runs.outputs import OutputFile, digest_of
from pipeline.runs.store import StageStore, Version, listed, number_of

#: Folder of the registry in the run folder.
REGISTRY: Final = "registry"
_WITHDRAWN: Final = "withdrawn"


def model_digest(files: Iterable[OutputFile], folder: str = "model") -> str:
    """Digest of the bytes of a model."""
    return digest_of(
        {
            each.path.removeprefix(folder): each.digest
            for each in files
            if each.path.startswith(f"{folder}/")
        }
    )


class Registry(StageStore):
    """The models of one network that were promoted."""

    kind: ClassVar[type[StageManifest | ModelManifest]] = ModelManifest
    subject: ClassVar[str] = "network"

    def __init__(self, run_dir: Path, network: str) -> None:
        super().__init__(run_dir, network, group=REGISTRY)

    @classmethod
    def all_of(cls, run_dir: Path) -> list[Registry]:
        """The registries of all networks with promoted models, by name."""
        return [cls(run_dir, path.name) for path in listed(run_dir / REGISTRY) if path.is_dir()]

    @classmethod
    def in_use(cls, run_dir: Path, network: str | None = None) -> Version:
        """The model in use."""
        current = {each.folder.name: each.current() for each in cls.all_of(run_dir)}
        there = {name: version for name, version in current.items() if version is not None}
        if not there:
            raise MissingInputError(
                f"no model is in use in {run_dir}. Name a training folder or an ONNX file (`--model`), or run "
                f"`python -m pipeline promote`."
            )
        if network is None and len(there) > 1:
            raise ConfigError(
                f"several models are in use: {', '.join(there)}. Name one (`--network`)."
            )
        if network is not None and network not in there:
            raise ConfigError(f"no model of '{network}' is in use.{nearest(network, there)}")
        return there[network or next(iter(there))].verified()

    @property
    def _remedy(self) -> str:
        return (
            f"Remove {self.pointer} and run `promote`, which puts the newest promoted model in use."
        )

    def promoted(self) -> list[str]:
        """Names of the models with a readable manifest that were not withdrawn, the oldest first."""
        manifests = {name: self.manifest_of(name) for name in self.complete()}
        return [
            name for name, manifest in manifests.items() if manifest and _WITHDRAWN not in manifest
        ]

    def withdrawn_digests(self) -> set[str]:
        """Digests of the models that were rolled back."""
        manifests = {
            name: self.manifest_of(name) for name in {*self.complete()} - {*self.promoted()}
        }
        return {
            model_digest(Version(name, self.folder / name, each).files)
            for name, each in manifests.items()
            if each
        }

    def withdraw(self, version: Version, when: str) -> None:
        """Mark a model as rolled back."""
        self.rewrite_manifest(version, version.manifest | {_WITHDRAWN: when})

    def recovered(self) -> Version | None:
        """The model in use; a missing pointer is first set to the newest promoted model.

        It is missing after a kill just before it was written, or where somebody removed a damaged one.
        """
        if not self.pointer.exists() and (promoted := self.promoted()):
            self.point_to(promoted[-1])
        return self.current()

    def remove_unpublished(self) -> None:
        """Remove models newer than the one in use, except withdrawn ones: a kill came before they were in use.

        Otherwise `rollback` would take them for earlier models in use.
        """
        current = self.current()
        for name in self.promoted():
            if (
                current
                and number_of(name) > number_of(current.name)
                and self.may_remove(self.folder / name)
            ):
                own_folders.remove(self.folder / name)
