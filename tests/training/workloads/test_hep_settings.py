"""The settings of the workload `hep` on their way to the ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from feature_datasets import write_dataset

from models.networks.hlf_settings import HlfSettings
from models.networks.network_settings import NetworkSettings
from models.networks.particles_settings import ParticlesSettings
from training.workloads.hep import HepEvents
from training.workloads.hep_settings import HepSettings
from training.workloads.registry import workload_from_json

FEATURE_CODE = {"feature own": "a digest"}
NETWORK_CODE = {"network own": "another digest"}


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        (HlfSettings(), FEATURE_CODE | NETWORK_CODE),
        # It does not take the features of plugins, which are columns of `hlf`.
        (ParticlesSettings(), NETWORK_CODE),
    ],
)
def test_a_rank_knows_the_code_of_the_plugins_that_its_model_needs(
    tmp_path: Path, network: NetworkSettings, expected: dict[str, str]
) -> None:
    dataset = write_dataset(tmp_path / "set", rows={"train": [4], "val": [4], "test": [4]})
    scaler = dataset.scaler()
    dataset._replace(plugin_code=FEATURE_CODE).save(columns=scaler)
    settings = HepSettings(folder=dataset.folder, network=network, plugin_code=NETWORK_CODE)

    workload = workload_from_json(settings.to_json(str), Path).open()

    assert isinstance(workload, HepEvents)
    assert workload._spec.plugin_code == expected
