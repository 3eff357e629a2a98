"""Training on a GPU: the CPU's numbers, the same for the same seed, and a change of device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from training.launching.rank import choose_device
from training.launching.run_spec import RunSpec
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
#: Each network with its defaults, unless variants of its settings are listed.
NETWORKS = [(name, {}) for name in NAMES if name not in dict(VARIANTS)] + [*VARIANTS]
in_each_precision = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 3e-5)], ids=str
)
with_each_input = pytest.mark.parametrize("model", [{}, PARTICLES], ids=["hlf", "particles"])


@pytest.fixture
def gpu() -> Iterator[torch.device]:
    """A GPU in the mode of a rank."""
    device = choose_device("cuda", TinyImages())
    be_deterministic()
    yield device
    torch.set_deterministic_debug_mode("default")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    folder = tmp_path_factory.mktemp("data") / "set"
    return write_dataset(folder, rows=ROWS, class_weights=[2.0, 1.0, 0.5])


@in_each_precision
@pytest.mark.parametrize(("name", "settings"), NETWORKS, ids=str)
def test_gradients_are_those_of_float64_on_the_cpu(
    gpu: torch.device, name: Any, settings: dict[str, Any], dtype: torch.dtype, tolerance: float
) -> None:
    events = random_events([3, 1, 40, 0, 17] * 12)
    expected_gradients = gradients(small_network(name, **settings), events)
    network = small_network(name, **settings).to(gpu, dtype)
    FlatModel(network)
    events_on_gpu = {}
    for column_name, column in events.items():
        column_dtype = column.dtype
        if column.is_floating_point():
            column_dtype = dtype
        events_on_gpu[column_name] = column.to(gpu, column_dtype)

    gpu_gradients = gradients(network, events_on_gpu)

    for gradient, expected in zip(gpu_gradients, expected_gradients, strict=True):
        difference = gradient.cpu().double() - expected
        assert gradient.dtype == dtype
        assert difference.norm() <= tolerance * max(1.0, expected.norm())


@pytest.mark.parametrize(("build", "channels", "side"), [(lenet5, 1, 28), (ResNet20, 3, 32)])
def test_gradients_of_networks_of_images_are_those_of_the_cpu(
    gpu: torch.device, build: Callable[[Scaler], nn.Module], channels: int, side: int
) -> None:
    torch.manual_seed(1)
    network = build(Scaler([100.0] * channels, [50.0] * channels)).double().eval()
    images = torch.randint(256, (8, side, side, channels), dtype=torch.uint8)
    labels = torch.arange(8)

    def loss_gradients(device: torch.device) -> list[torch.Tensor]:
        torch.manual_seed(1)
        logits = network.to(device)(images.to(device))
        loss = functional.cross_entropy(logits, labels.to(device))
        device_gradients = torch.autograd.grad(loss, list(network.parameters()))
        return [gradient.cpu() for gradient in device_gradients]

    expected = loss_gradients(torch.device("cpu"))
    torch.testing.assert_close(loss_gradients(gpu), expected, rtol=1e-9, atol=1e-12)


@with_each_input
def test_a_seed_gives_the_same_numbers_again_after_a_pause_and_nearly_on_a_cpu(
    dataset: FeatureDataset, tmp_path: Path, model: dict[str, Any]
) -> None:
    def spec(name: str, *, epochs: int = 4, device: str = "cuda") -> RunSpec:
        return make_spec(dataset, tmp_path / name, model=model, epochs=epochs, device=device)

    first = spec("first")
    repeated = spec("repeated")
    before_pause = spec("paused", epochs=2)
    before_move = spec("moved", epochs=2)
    first_runs = [first, repeated, before_pause, before_move]
    launch_all(first_runs, tmp_path / "first job", on_progress=lambda *_: None)
    # Without the summary, a run counts as stopped before its end.
    for interrupted in (before_pause, before_move):
        (interrupted.out_dir / "summary.json").unlink()
    after_pause = spec("paused")
    after_move = spec("moved", device="cpu")

    launch_all([after_pause, after_move], tmp_path / "second job", on_progress=lambda *_: None)

    expected = flat_weights(first.out_dir)
    np.testing.assert_array_equal(flat_weights(repeated.out_dir), expected)
    np.testing.assert_array_equal(flat_weights(after_pause.out_dir), expected)
    np.testing.assert_allclose(flat_weights(after_move.out_dir), expected, atol=2e-4)
    assert len(records(after_pause.out_dir)[0]) == 4


@with_each_input
def test_every_kind_of_method_learns(
    dataset: FeatureDataset, tmp_path: Path, model: dict[str, Any]
) -> None:
    settings: dict[str, Any] = {"device": "cuda", "workers": 3, "epochs": 8, "learning_rate": 0.01}
    runs = [
        make_spec(dataset, tmp_path / str(index), model=model, **settings, **method)
        for index, method in enumerate(METHODS)
    ]

    launch_all(runs, tmp_path / "job", on_progress=lambda *_: None)

    for run in runs:
        losses = [record["val_loss"] for record in records(run.out_dir)[0]]
        assert min(losses) < 0.95 * losses[0], run.train.algorithm.name
