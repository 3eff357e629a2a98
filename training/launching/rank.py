"""One rank of a training run: builds network, reader and algorithm from a spec, and trains."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from features.dataset import FeatureDataset
from models.networks.network_settings import NetworkSettings
from models.networks.registry import settings_from_json
from models.saved_model import ModelSpec, build, load_model, model_spec, save_model
from training.determinism import be_deterministic
from training.errors import LaunchError, WarmStartError
from training.flat_model import FlatModel
from training.loop.checkpoints import Checkpoint, CheckpointFolder, settings_digest
from training.loop.making import make_algorithm
from training.loop.metering import Meter, MeteredTransport
from training.loop.records import DiskFiles
from training.loop.scalars import FOLDER, TensorBoardScalars
from training.loop.summary import write_summary
from training.loop.trainer import Progress, Trainer
from training.readers.opening import open_reader
from training.readers.skew import owners_of
from training.settings import TrainSettings
from training.threads import use_threads
from training.transports.transport import Transport, Vector, run_now
from training.workloads.work import ReaderWork

_DTYPES: Final = {"float32": torch.float32, "float64": torch.float64}


class RunSpec(NamedTuple):
    """Specification of a training run; the ranks get it as JSON."""

    dataset: Path
    model: NetworkSettings
    train: TrainSettings
    out_dir: Path
    start_from: Path | None = None
    """Folder of the model that gives the initial weights and scaling; None for fresh weights."""

    def save(self, path: Path) -> None:
        """Write the spec as JSON, with paths relative to its folder, and without `train.launcher_args`."""

        def seen_from_there(folder: Path) -> str:
            return os.path.relpath(folder, path.parent)

        content = {
            "dataset": seen_from_there(self.dataset),
            "model": self.model.to_json(),
            # The ranks do not need the launcher's arguments, and `-x NAME=value` may hold a secret.
            "train": self.train.model_dump(mode="json", exclude={"launcher_args"}),
            "out_dir": seen_from_there(self.out_dir),
            "start_from": None if self.start_from is None else seen_from_there(self.start_from),
        }
        path.write_text(json.dumps(content, indent=1), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote."""
        content = json.loads(path.read_text(encoding="utf-8"))

        def resolved(written: str) -> Path:
            return Path(os.path.normpath(path.parent.absolute() / written))

        return cls(
            resolved(content["dataset"]),
            settings_from_json(content["model"]),
            TrainSettings(**content["train"]),
            resolved(content["out_dir"]),
            None if content["start_from"] is None else resolved(content["start_from"]),
        )


class Watched(Protocol):
    """Something that checks a worker's meter from time to time."""

    def watch(self, meter: Meter) -> None:
        """Begin to check this meter."""


def train(
    spec: RunSpec,
    transport: Transport,
    *,
    on_progress: Callable[[Progress], None] | None,
    watchdog: Watched | None = None,
) -> None:
    """Train on this rank; resumes from the newest checkpoint of the same settings in `spec.out_dir`.

    Writes into `spec.out_dir`: `model/` (the model of the lowest validation loss), `metrics/rank-<n>.jsonl` (one line
    per epoch), `checkpoints/`, `summary.json`.

    Args:
        spec: Dataset, network and settings.
        transport: The other ranks.
        on_progress: Called from time to time; None on ranks without a progress display.
        watchdog: Checks that there is progress.

    Raises:
        ShardError: The dataset has too few row groups for the workers.
        DivergedError: The loss is no longer finite.
        CheckpointError: A checkpoint is damaged.
        WarmStartError: The training cannot start from the configured model.
    """
    settings = spec.train
    device = choose_device(settings.device)
    use_threads(settings.threads)
    be_deterministic()
    dataset = FeatureDataset.load(spec.dataset)
    described = model_spec(spec.model, dataset)
    start = None if spec.start_from is None else load_start(spec.start_from, described)
    if start is not None:
        # Weights are meaningful only with the scaling of their training.
        described = described._replace(scalers=start.spec.scalers)
    model = make_model(described, settings, transport, device, start=start)
    owners = owners_of(dataset, settings, world_size=transport.world_size)
    reader = open_reader(
        dataset,
        model.module.inputs,  # type: ignore[arg-type]
        kind=settings.reader,
        cache=settings.cache,
        dtype=_DTYPES[settings.precision],
        seed=settings.seed,
        device=device,
        own=None if owners is None else owners.rows_of(transport.rank),
    )
    meter = Meter(transport.now)
    if watchdog is not None:
        watchdog.watch(meter)
    metered = MeteredTransport(transport, meter)
    files = DiskFiles(
        spec.out_dir,
        rank=transport.rank,
        world_size=transport.world_size,
        digest=settings_digest(spec.model, settings),
        scalars=TensorBoardScalars(spec.out_dir / FOLDER) if settings.tensorboard else None,
        save_model=lambda parameters: save_parameters(model, parameters, described, spec.out_dir / "model"),
    )
    trainer = Trainer(
        settings,
        [group.rows for group in dataset.splits["train"]],
        ReaderWork(model, reader, alive=meter.alive),
        make_algorithm(model, settings, metered),
        metered,
        meter,
        files,
        on_progress,
        owners=owners,
    )
    with without_denormals():
        run_now(trainer.run(agreed_checkpoint(files.checkpoints, transport)))
    run_now(transport.barrier())
    files.close()
    if transport.rank == 0:
        write_summary(spec.out_dir, spec.model, settings, dataset.num_rows("train"), model.flat.numel())
    run_now(transport.barrier())


def agreed_checkpoint(checkpoints: CheckpointFolder, transport: Transport) -> Checkpoint | None:
    """The newest checkpoint that rank 0 sees; right after a crash, shared storage may show ranks different ones.

    Raises:
        CheckpointError: The checkpoint is damaged, or this rank does not see it.
    """
    found = checkpoints.latest() if transport.rank == 0 else None
    place = np.array([found.epoch, found.step, found.world_size] if found else [0, 0, 0], dtype=np.int64)
    run_now(transport.broadcast(place))
    epoch, step, world_size = (int(number) for number in place)
    return checkpoints.await_complete(epoch, step, world_size) if world_size else None


@contextmanager
def without_denormals() -> Iterator[None]:
    """Treat denormal numbers as 0: in vanishing gradients they make the backward pass of a GRU 2.5 times slower.

    The mode applies to the whole process, so it ends with the training.
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


class Start(NamedTuple):
    """Weights and scaling of a model to start from."""

    spec: ModelSpec
    weights: dict[str, Tensor]


def load_start(folder: Path, wanted: ModelSpec) -> Start:
    """Read a model to start from.

    Raises:
        WarmStartError: It is another network, or a network for other classes or features.
    """
    model, spec = load_model(folder)
    for what in ("settings", "classes", "definitions"):
        found, expected = getattr(spec, what), getattr(wanted, what)
        if found != expected:
            raise WarmStartError(
                f"training cannot start from {folder}: its {what} are {found}, not {expected}. "
                f"Set train.warm_start: false."
            )
    return Start(spec, model.state_dict())


def make_model(
    spec: ModelSpec, settings: TrainSettings, transport: Transport, device: torch.device, *, start: Start | None = None
) -> FlatModel:
    """The network with initial weights from the seed or from the given start, the same on all ranks."""
    torch.manual_seed(settings.seed)
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(_DTYPES[settings.precision])
        network = build(spec)
        if start is not None:
            network.load_state_dict(start.weights)
        model = FlatModel(network.to(device))
    finally:
        torch.set_default_dtype(before)
    initial = model.empty()
    model.read(initial)
    run_now(transport.broadcast(initial))
    model.write(initial)
    return model


def save_parameters(model: FlatModel, parameters: Vector, spec: ModelSpec, folder: Path) -> None:
    """Save a model with the given parameters; its own stay unchanged."""
    own = model.empty()
    model.read(own)
    model.write(parameters)
    save_model(model.module, spec, folder)
    model.write(own)


def choose_device(name: str) -> torch.device:
    """The device of this rank: a GPU (ranks of a machine take its GPUs in turn), or the CPU.

    Raises:
        LaunchError: `train.device` is cuda, and there is no GPU.
    """
    available = torch.cuda.device_count()
    if name == "cpu" or (name == "auto" and not available):
        return torch.device("cpu")
    if not available:
        raise LaunchError("train.device is cuda, but torch sees no GPU; set it to auto or cpu, or check nvidia-smi.")
    # cuBLAS is deterministic only with a workspace of fixed size.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    return torch.device("cuda", local_rank() % available)


def local_rank() -> int:
    """Number of this rank among the ranks of its machine, from the launcher; 0 without a launcher."""
    for name in ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID"):
        if name in os.environ:
            return int(os.environ[name])
    return 0
