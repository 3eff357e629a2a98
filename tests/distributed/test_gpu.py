"""Training on a GPU: the CPU's numbers, the same for the same seed, and a change of device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from feature_datasets import write_dataset
from networks import NAMES, VARIANTS, gradients, random_events, small_network
from tiny_images import TinyImages
from torch import nn
from torch.nn import functional
from training_runs import flat_weights, make_spec, records

from features.dataset import FeatureDataset
from hep_studies.networks.lenet5 import lenet5
from hep_studies.networks.resnet20 import ResNet20
from models.networks.scaling_layer import Scaler
from training.flat_model import FlatModel
from training.launching.launcher import launch_all
from training.launching.rank import RunSpec, choose_device
from training.threads import be_deterministic

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
]

ROWS = {"train": [20] * 6 + [7], "val": [15, 15], "test": [10]}
PARTICLES: dict[str, Any] = {"name": "particles", "gru_width": 8}
METHODS: list[dict[str, Any]] = [
    {"algorithm": "ar-sgd", "slowmo": {"tau": 4, "beta": 0.5}, "optimizer": "sgd", "momentum": 0.9},
    {"algorithm": "ad-psgd"},
    {"algorithm": "swarm-sgd"},
    {"algorithm": "easgd", "local_steps": 2},
    {"algorithm": "sharded", "overlap": "thread", "bound": 4, "drop_rate": 0.5},
    {"algorithm": "mpca", "cycle_steps": 2},
]


@pytest.fixture
def gpu() -> Iterator[torch.device]:
    """A GPU in the mode of a rank."""
    device = choose_device("cuda", TinyImages())
    be_deterministic()
    yield device
    torch.set_deterministic_debug_mode("default")


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 3e-5)], ids=str
)
@pytest.mark.parametrize(
    ("name", "settings"),
    [*((name, {}) for name in NAMES if name not in dict(VARIANTS)), *VARIANTS],
    ids=str,
)
def test_gradients_are_those_of_float64_on_the_cpu(
    gpu: torch.device, name: Any, settings: dict[str, Any], dtype: torch.dtype, tolerance: float
) -> None:
    events = random_events([3, 1, 40, 0, 17] * 12)
    expected = gradients(small_network(name, **settings), events)
    network = small_network(name, **settings).to(gpu, dtype)
    FlatModel(network)
    moved = {
        key: column.to(gpu, dtype if column.is_floating_point() else column.dtype)
        for key, column in events.items()
    }
    for actual, reference in zip(gradients(network, moved), expected, strict=True):
        assert actual.dtype == dtype
        assert (actual.cpu().double() - reference).norm() <= tolerance * max(1.0, reference.norm())


@pytest.mark.parametrize("kind_name", [lenet5, ResNet20])
def test_gradients_of_networks_of_images_are_those_of_the_cpu(
    gpu: torch.device, kind_name: Any
) -> None:
    channels, side = (1, 28) if kind_name is lenet5 else (3, 32)
    torch.manual_seed(1)
    network: nn.Module = kind_name(Scaler([100.0] * channels, [50.0] * channels)).double()
    images = torch.randint(256, (8, side, side, channels), dtype=torch.uint8)
    labels = torch.arange(8)

    def of(device: torch.device) -> list[torch.Tensor]:
        torch.manual_seed(1)
        loss = functional.cross_entropy(
            network.to(device).eval()(images.to(device)), labels.to(device)
        )
        return [
            gradient.cpu() for gradient in torch.autograd.grad(loss, list(network.parameters()))
        ]

    for expected, actual in zip(of(torch.device("cpu")), of(gpu), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    return write_dataset(
        tmp_path_factory.mktemp("data") / "set", rows=ROWS, class_weights=[2.0, 1.0, 0.5]
    )


def run_all(folder: Path, *runs: RunSpec) -> None:
    """Train, in ranks that are started once."""
    launch_all(list(runs), folder, on_progress=lambda *_: None)


def test_the_same_seed_gives_the_same_numbers_also_after_a_pause(
    dataset: FeatureDataset, tmp_path: Path
) -> None:
    def spec(name: str, *, model: dict[str, Any], **train: Any) -> RunSpec:
        return make_spec(
            dataset, tmp_path / name, model=model, **{"device": "cuda", "workers": 2, **train}
        )

    for model in ({}, PARTICLES):
        kind_name = model.get("name", "hlf")
        runs = [spec(f"{kind_name}-{name}", model=model, epochs=4) for name in ("once", "twice")]
        paused = [spec(f"{kind_name}-paused", model=model, epochs=epochs) for epochs in (2, 4)]
        moved = [
            spec(f"{kind_name}-moved", model=model, epochs=2),
            spec(f"{kind_name}-moved", model=model, epochs=4, device="cpu"),
        ]
        run_all(tmp_path / f"{kind_name}-first", *runs, paused[0], moved[0])
        for first_half in (paused[0], moved[0]):
            (
                first_half.out_dir / "summary.json"
            ).unlink()  # As if it had been stopped before its end.
        run_all(tmp_path / f"{kind_name}-then", paused[1], moved[1])
        once, twice, later, on_cpu = (
            flat_weights(run.out_dir) for run in (*runs, paused[1], moved[1])
        )
        np.testing.assert_array_equal(twice, once)
        np.testing.assert_array_equal(later, once)
        np.testing.assert_allclose(on_cpu, once, atol=2e-4)
        assert len(records(paused[1].out_dir)[0]) == 4


@pytest.mark.parametrize("model", [{}, PARTICLES], ids=["hlf", "particles"])
def test_every_kind_of_method_learns(
    dataset: FeatureDataset, tmp_path: Path, model: dict[str, Any]
) -> None:
    settings: dict[str, Any] = {"device": "cuda", "workers": 3, "epochs": 8, "learning_rate": 0.01}
    runs = [
        make_spec(dataset, tmp_path / str(index), model=model, **settings, **method)
        for index, method in enumerate(METHODS)
    ]
    run_all(tmp_path / "job", *runs)
    for run in runs:
        losses = [record["val_loss"] for record in records(run.out_dir)[0]]
        assert min(losses) < 0.95 * losses[0], run.train.algorithm.name
