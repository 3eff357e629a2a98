"""Buffers of batch norm, dropout and augmentation in training."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from simulated import CLUSTER, UNEVEN_CLUSTER, MemoryCheckpoints
from tiny_images import TinyImages, network
from torch import nn

from hep_studies.run_in_simulator import simulate_workload
from hep_studies.simulator.simulate import Simulated
from hep_studies.simulator.stacked import StackedModels, StackedWork
from hep_studies.simulator.transport import SimNetwork
from hep_studies.simulator.virtual_time import VirtualClock
from models.networks.scaling_layer import Scaler, Standardize
from training.flat_model import FlatModel, ModelState
from training.loop.worker_state import SharedBuffers
from training.readers.batch import Batch
from training.settings import TrainSettings
from training.transports.basics import run_now
from training.transports.transport import Transport
from training.workloads.draws import Augmentation, Draws


def run(
    *, files: Any = None, resume: Any = None, cluster: Any = UNEVEN_CLUSTER, **train: Any
) -> Simulated:
    """Two epochs of ten steps of the small workload on three workers."""
    options = {}
    if files is not None:
        options["files"] = files
    if resume is not None:
        options["resume"] = resume
    defaults = {
        "workers": 3,
        "epochs": 2,
        "batch_size": 4,
        "checkpoint_steps": 5,
        "sharding": "static",
    }
    settings = TrainSettings.model_validate(defaults | train)
    return simulate_workload(TinyImages(), settings, cluster, **options)


def last_buffers(
    checkpoints: MemoryCheckpoints, position: tuple[int, int] = (2, 0)
) -> list[np.ndarray[Any, Any]]:
    """The buffers of each worker in a checkpoint."""
    checkpoint = checkpoints.at(position)
    return [checkpoint.load(rank)["buffers"].numpy() for rank in range(checkpoint.world_size)]


@pytest.mark.parametrize("method", ["ar-sgd", "ad-psgd"])
@pytest.mark.parametrize("position", [(0, 5), (1, 0)])
def test_a_resumed_run_equals_an_uninterrupted_one(method: str, position: tuple[int, int]) -> None:
    checkpoints = MemoryCheckpoints()
    resumed_checkpoints = MemoryCheckpoints()
    uninterrupted = run(algorithm=method, files=checkpoints.files)
    middle = checkpoints.at(position)

    resumed = run(algorithm=method, files=resumed_checkpoints.files, resume=middle)

    np.testing.assert_array_equal(resumed.parameters, uninterrupted.parameters)
    resumed_buffers = last_buffers(resumed_checkpoints)
    np.testing.assert_array_equal(resumed_buffers, last_buffers(checkpoints))
    losses = [record["val_loss"] for record in uninterrupted.records[0]]
    resumed_losses = [record["val_loss"] for record in resumed.records[0]]
    assert resumed_losses == losses


def test_workers_have_buffers_of_their_own_and_validate_with_the_mean() -> None:
    checkpoints = MemoryCheckpoints()

    simulated = run(algorithm="ar-sgd", epochs=1, files=checkpoints.files, cluster=CLUSTER)

    buffers = last_buffers(checkpoints, (1, 0))
    assert (buffers[0] != buffers[1]).any()
    assert simulated.best is not None
    np.testing.assert_allclose(simulated.best.buffers, np.mean(buffers, axis=0), rtol=1e-15)
    # The validation loss is that of the mean parameters with the mean buffers, in evaluation mode.
    model = FlatModel(network())
    model.load(simulated.best)
    rows = TinyImages().rows("val", TrainSettings()).rows
    model.module.eval()
    logits = model.module(*rows.inputs)
    loss = nn.functional.cross_entropy(logits, rows.labels)
    val_loss = simulated.records[0][0]["val_loss"]
    assert val_loss == pytest.approx(loss.item(), rel=1e-5)


def test_fewer_workers_continue_from_the_mean_of_the_buffers() -> None:
    checkpoints = MemoryCheckpoints()
    resumed_checkpoints = MemoryCheckpoints()
    run(files=checkpoints.files)

    run(workers=2, files=resumed_checkpoints.files, resume=checkpoints.at((1, 0)), epochs=2)

    # Batch norm has counted 10 batches on three workers and 15 on two.
    batch_counts = [buffers[-1] for buffers in last_buffers(resumed_checkpoints)]
    assert batch_counts == [10 + 15, 10 + 15]


def spoil_buffers(checkpoints: MemoryCheckpoints, position: tuple[int, int]) -> None:
    """Replace the buffers of rank 0 in a checkpoint by NaN."""
    bytes_of_rank = checkpoints.content[position]
    state = torch.load(io.BytesIO(bytes_of_rank[0]), weights_only=True)
    state["buffers"] *= float("nan")
    file = io.BytesIO()
    torch.save(state, file)
    bytes_of_rank[0] = file.getvalue()


@pytest.mark.parametrize("workers", [3, 2], ids=["as many", "fewer"])
def test_buffers_that_are_not_finite_stay_with_their_worker_until_it_validates(
    workers: int,
) -> None:
    checkpoints = MemoryCheckpoints()
    resumed_checkpoints = MemoryCheckpoints()
    run(algorithm="local-sgd", files=checkpoints.files)
    spoil_buffers(checkpoints, (1, 0))

    resumed = run(
        algorithm="local-sgd",
        workers=workers,
        files=resumed_checkpoints.files,
        resume=checkpoints.at((1, 0)),
    )

    assert np.isfinite(resumed.records[0][-1]["val_loss"])
    assert np.isfinite(last_buffers(resumed_checkpoints)).all()


class OnlyBuffers(StackedWork):
    """The work of a model that has buffers only."""

    def __init__(self, present: np.ndarray[Any, Any]) -> None:
        self.present = present

    def buffers(self) -> np.ndarray[Any, Any]:
        return self.present.copy()

    def write_buffers(self, values: np.ndarray[Any, Any]) -> None:
        self.present = values


def test_validations_take_the_mean_over_the_buffers_of_all_workers() -> None:
    clock = VirtualClock()
    transports = SimNetwork(clock, CLUSTER, 3).transports()
    means: list[Any] = []

    async def work(rank: int) -> None:
        buffers = OnlyBuffers(np.array([1.0 + rank**2, 10.0 * rank]))
        shared = SharedBuffers(buffers, transports[rank])
        await shared.share()
        buffers.present = buffers.present + rank
        await shared.publish()
        await transports[rank].barrier()
        means.append(await shared.snapshot())
        means.append(await shared.mean())
        await shared.close()

    for rank in range(3):
        clock.spawn(work(rank), f"worker {rank}")
    clock.run()

    # The means of 1, 3 and 7, and of 0, 11 and 22.
    np.testing.assert_allclose(means, [[11 / 3, 11.0]] * 6)


def test_buffers_that_are_not_finite_are_not_published() -> None:
    buffers = OnlyBuffers(np.ones(2))
    shared = SharedBuffers(buffers, Transport())
    run_now(shared.share())

    buffers.present = np.array([3.0, np.inf])
    run_now(shared.publish())
    snapshot_of_broken = run_now(shared.snapshot())
    present_after_broken = buffers.present
    buffers.present = np.array([3.0, 2.0])
    run_now(shared.publish())
    snapshot_of_finite = run_now(shared.snapshot())

    assert snapshot_of_broken.tolist() == [1.0, 1.0]
    assert present_after_broken.tolist() == [1.0, 1.0]
    assert snapshot_of_finite.tolist() == [3.0, 2.0]


def test_gradients_of_virtual_workers_are_those_of_each_alone_with_dropout_and_batch_norm() -> None:
    rows = TinyImages().rows("train", TrainSettings()).rows
    augmentation = Augmentation(1, 5)
    torch.manual_seed(3)
    module = network()
    stacked = StackedModels(module, 2, seed=4, augmentation=augmentation)
    batch_rows = np.arange(20)

    for _ in range(2):
        stacked.compute({1: batch_rows, 0: batch_rows}, rows)

    # The workers draw other numbers.
    assert not torch.equal(stacked.gradients[0], stacked.gradients[1])
    initial_buffers = FlatModel(module).buffers()
    for rank in (0, 1):
        model = FlatModel(network())
        parameters = stacked.parameters[rank].numpy()
        model.load(ModelState(parameters, initial_buffers))
        draws = Draws(seed=4, rank=rank, augmentation=augmentation)
        for _ in range(2):
            batch = draws.prepare(rows.batch(batch_rows), for_torch=True)
            model.zero_gradient()
            logits = model.module(*batch.inputs)
            nn.functional.cross_entropy(logits, batch.labels).backward()
        torch.testing.assert_close(stacked.gradients[rank], model.gradient)
        np.testing.assert_array_equal(stacked.buffers[rank], model.buffers())


def pixels_of(image: torch.Tensor) -> tuple[int, ...]:
    return tuple(image.flatten().tolist())


def test_crops_are_parts_of_the_framed_image_or_of_its_mirror_image() -> None:
    image = torch.arange(1, 10, dtype=torch.uint8).view(3, 3)
    framed = nn.functional.pad(image, (1, 1, 1, 1))
    possible_crops: set[tuple[int, ...]] = set()
    for row in range(3):
        for column in range(3):
            crop = framed[row : row + 3, column : column + 3]
            possible_crops.add(pixels_of(crop))
            possible_crops.add(pixels_of(crop.flip(1)))
    assert len(possible_crops) == 18
    images = image.view(1, 3, 3, 1).repeat(500, 1, 1, 1)
    batch = Batch((images,), torch.zeros(500), torch.ones(500))
    draws = Draws(seed=1, rank=0, augmentation=Augmentation(padding=1, side=3))

    (crops,) = draws.prepare(batch, for_torch=False).inputs

    drawn_crops = {pixels_of(crop) for crop in crops}
    assert drawn_crops == possible_crops


def test_no_network_of_events_has_buffers_that_change() -> None:
    network = nn.Sequential(Standardize(Scaler([0.0], [1.0])), nn.Linear(1, 2))

    assert FlatModel(network).buffers().size == 0


def test_counts_in_buffers_stay_integers() -> None:
    model = FlatModel(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))

    model.write_buffers(np.array([0.5, 1.5, 2.0, 3.0, 7.4]))

    assert model.buffers().tolist() == [0.5, 1.5, 2.0, 3.0, 7.0]
