"""Settings of the workload `hep`. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator
from typing_extensions import override

from features.dataset import FeatureDataset
from hep_core.storage import is_remote
from models.networks.network_settings import NetworkSettings
from models.networks.registry import settings_of
from training.workloads.base_settings import BaseSettings, workload

if TYPE_CHECKING:
    from training.workloads.workload import Workload


@workload
class HepSettings(BaseSettings):
    """Collision events."""

    name: Literal["hep"] = "hep"
    folder: Path
    """Folder of the features dataset."""
    network: NetworkSettings
    """The network, or a mapping with its `name` and settings."""
    plugin_code: dict[str, str] = Field(default={})
    """Digest of the plugin of the network, for the saved model; empty if it is ours."""

    @field_validator("network", mode="before")
    @classmethod
    def _read_network(cls, network: Any) -> Any:
        return settings_of(network) if isinstance(network, Mapping) else network

    @property
    @override
    def network_name(self) -> str:
        return self.network.name

    @property
    @override
    def meaning(self) -> dict[str, Any]:
        return self.network.to_json()

    @property
    @override
    def reads_from_server(self) -> bool:
        return is_remote(FeatureDataset.load(self.folder).data)

    @override
    def open(self) -> Workload:
        from training.workloads.hep import HepEvents

        return HepEvents(self.folder, self.network, self.plugin_code)

    @override
    def train_group_rows(self) -> list[int]:
        # No rows are opened, which would import torch.
        groups = FeatureDataset.load(self.folder).splits["train"]
        return [group.rows for group in groups]

    @override
    def to_json(self, write_path: Callable[[Path], str]) -> dict[str, Any]:
        dataset = write_path(self.folder)
        model = self.network.to_json()
        return {"dataset": dataset, "model": model, "plugin_code": self.plugin_code}
