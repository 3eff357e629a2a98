"""The vector that is trained: frozen parameters are not in it and stay as they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from feature_datasets import write_dataset
from simulated import PARALLEL_METHODS, models, run
from torch import Tensor, nn
from typing_extensions import override

from features.dataset import FeatureDataset
from models.networks.classifier import Classifier
from models.networks.network_settings import NETWORKS, NetworkSettings
from models.networks.scaling_layer import Standardize
from models.saved_model import load_model
from training.compiled.engines import compiled_engine
from training.errors import FrozenNetworkError
from training.flat_model import FlatModel
from training.launching.launcher import launch
from training.launching.run_spec import RunSpec
from training.loop.factories import make_model
from training.settings import TrainSettings
from training.transports.transport import Transport
from training.workloads.hep_settings import HepSettings


class FrozenMiddleSettings(NetworkSettings):
    """A perceptron whose middle layer is frozen, as in fine-tuning."""

    name: ClassVar[str] = "frozen_middle"
    inputs: ClassVar[tuple[str, ...]] = ("hlf",)

    @override
    def build(self, scalers: Mapping[str, Any], num_classes: int) -> FrozenMiddle:
        return FrozenMiddle(self, scalers, num_classes)


class FrozenMiddle(Classifier):
    """The network of these settings."""

    def __init__(
        self, settings: NetworkSettings, scalers: Mapping[str, Any], num_classes: int
    ) -> None:
        super().__init__(settings, scalers, num_classes)
        scaler = scalers["hlf"]
        num_inputs = len(scaler.mean)
        self.first = nn.Sequential(Standardize(scaler), nn.Linear(num_inputs, 6), nn.ReLU())
        self.middle = nn.Linear(6, 6).requires_grad_(False)
        self.last = nn.Linear(6, num_classes)

    @override
    def forward(self, hlf: Tensor) -> Tensor:
        logits: Tensor = self.last(self.middle(self.first(hlf)).relu())
        return logits


class ConstantLayer(nn.Module):
    """A linear layer that has no parameters."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self._weight = layer.weight.detach().clone()
        self._bias = layer.bias.detach().clone()

    def forward(self, inputs: Tensor) -> Tensor:
        """The layer of the inputs."""
        return nn.functional.linear(inputs, self._weight, self._bias)


def perceptron(*, is_constant: bool) -> nn.Sequential:
    """Three layers, the middle one frozen or constant."""
    torch.manual_seed(7)
    first = nn.Linear(4, 6, dtype=torch.float64)
    middle = nn.Linear(6, 6, dtype=torch.float64)
    last = nn.Linear(6, 3, dtype=torch.float64)
    if is_constant:
        return nn.Sequential(first, nn.ReLU(), ConstantLayer(middle), nn.ReLU(), last)
    return nn.Sequential(first, nn.ReLU(), middle.requires_grad_(False), nn.ReLU(), last)


def test_frozen_parameters_are_no_part_of_the_vector() -> None:
    module = perceptron(is_constant=False)
    first, _, middle, *_ = module.parameters()
    frozen_weights = middle.detach().clone()

    model = FlatModel(module)
    model.write(np.zeros(model.flat.numel()))

    assert model.flat.numel() == (4 + 1) * 6 + (6 + 1) * 3
    assert torch.equal(middle, frozen_weights)
    assert not first.any()


def test_kernels_leave_networks_with_frozen_parameters_to_torch() -> None:
    module = perceptron(is_constant=False)

    engine_with_frozen = compiled_engine(module)
    engine_without_frozen = compiled_engine(module.requires_grad_(True))

    assert engine_with_frozen is None
    assert engine_without_frozen is not None


@pytest.mark.parametrize("module", [nn.Linear(2, 2).requires_grad_(False), nn.ReLU()], ids=str)
def test_a_network_without_a_parameter_to_train_is_named(module: nn.Module) -> None:
    message = f"{type(module).__name__} has no parameter to train"
    with pytest.raises(FrozenNetworkError, match=message):
        FlatModel(module)


@pytest.mark.parametrize("slowmo", [None, {"tau": 4}], ids=["alone", "slowmo"])
@pytest.mark.parametrize(
    "method", ["ar-sgd", "local-sgd", "choco-sgd", "ad-psgd", "agn", "easgd", "sharded"]
)
def test_a_frozen_layer_trains_as_a_constant_one(
    method: str, slowmo: dict[str, Any] | None
) -> None:
    settings = PARALLEL_METHODS[method] | {"optimizer": "adamw", "weight_decay": 0.1}
    if slowmo is not None:
        settings["slowmo"] = slowmo

    frozen = run(module=perceptron(is_constant=False), **settings)
    constant = run(module=perceptron(is_constant=True), **settings)

    np.testing.assert_array_equal(models(frozen), models(constant))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    rows = {"train": [32] * 4, "val": [30], "test": [30]}
    return write_dataset(tmp_path_factory.mktemp("data") / "set", rows=rows)


@pytest.mark.parametrize(
    "optimizer",
    [{"optimizer": "sgd", "momentum": 0.9}, {"optimizer": "adam"}, {"optimizer": "adamw"}],
    ids=str,
)
def test_a_saved_network_has_its_frozen_layer_also_after_a_pause(
    dataset: FeatureDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    optimizer: dict[str, Any],
) -> None:
    monkeypatch.setitem(NETWORKS._entries, FrozenMiddleSettings.name, FrozenMiddleSettings)
    workload = HepSettings(folder=dataset.folder, network=FrozenMiddleSettings())
    model = make_model(workload.open(), TrainSettings(), Transport(), torch.device("cpu"))
    start = model.module.state_dict()
    settings: dict[str, Any] = {
        "algorithm": "sgd",
        "batch_size": 16,
        "weight_decay": 0.1,
        "reader": "arrow",
        **optimizer,
    }

    # The second training continues from the checkpoint of the first.
    for epochs in (2, 4):
        train = TrainSettings.model_validate(settings | {"epochs": epochs})
        launch(RunSpec(workload, train, tmp_path), on_progress=None)

    trained_model, _ = load_model(tmp_path / "model")
    trained = trained_model.state_dict()
    assert torch.equal(trained["middle.weight"], start["middle.weight"])
    assert torch.equal(trained["middle.bias"], start["middle.bias"])
    assert not torch.equal(trained["last.weight"], start["last.weight"])
