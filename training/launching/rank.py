"""One rank of a training run: builds network, reader and algorithm from a spec, and trains."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from training.compiled.engines import PerceptronEngine, compiled_engine
from training.errors import LaunchError
from training.flat_model import FlatModel, ModelState
from training.launching.run_spec import RunSpec
from training.loop.checkpoints import Checkpoint, CheckpointFolder
from training.loop.coroutines import checked_awaits
from training.loop.factories import make_algorithm, make_model
from training.loop.metering import Meter, MeteredTransport
from training.loop.progress import Progress
from training.loop.records import TENSORBOARD, DiskFiles, open_scalars_writer
from training.loop.resumption import settings_digest
from training.loop.summary import write_summary
from training.loop.trainer import Trainer
from training.loop.watchdog import Watchdog
from training.readers.units import Position
from training.threads import be_deterministic, use_threads
from training.transports.basics import run_now
from training.transports.transport import Transport
from training.workloads.draws import Draws
from training.workloads.work import ReaderWork
from training.workloads.workload import Workload


def train(
    spec: RunSpec,
    transport: Transport,
    *,
    on_progress: Callable[[Progress], None] | None,
    watchdog: Watchdog | None = None,
) -> None:
    """Train on this rank; resumes from the newest checkpoint of the same settings, if there is one.

    It opens the data, makes network, reader and algorithm, and runs the training loop. All ranks
    call it together.

    Writes into `spec.out_dir`: `model/` (the model of the lowest validation loss),
    `metrics/rank-<n>.jsonl` (one line per epoch), `checkpoints/`, `summary.json`.

    `on_progress`: called from time to time; None on ranks without a progress display. `watchdog`:
    ends a run without progress; None for no limit.

    Raises:
        TrainingError: Among others, a checkpoint or the data is damaged, or the loss is no longer
            finite.
    """
    settings, meter = spec.train, Meter(transport.now)
    use_threads(settings.threads)
    be_deterministic()
    workload = spec.workload.open()
    device = choose_device(settings.device, workload)
    model = make_model(workload, settings, transport, device)
    # With unequal data each row belongs to one worker; otherwise there is no partition.
    partition = workload.partition(settings, world_size=transport.world_size)
    owned_rows = None
    if partition is not None:
        owned_rows = partition.rows_of_worker(transport.rank)
    reader = workload.reader(settings, device, owned_rows=owned_rows)
    draws = Draws(seed=settings.seed, rank=transport.rank, augmentation=workload.augmentation)
    work = ReaderWork(
        model,
        reader,
        draws=draws,
        alive=meter.alive,
        decorrelation=workload.decorrelation(settings),
    )
    if watchdog is not None:
        watchdog.watch(meter)
    # From here, messages of the training are measured; those of start and end are not.
    metered = MeteredTransport(transport, meter)
    scalars = None
    if settings.tensorboard and transport.rank == 0:
        scalars = open_scalars_writer(spec.out_dir / TENSORBOARD)
    files = DiskFiles(
        spec.out_dir,
        rank=transport.rank,
        world_size=transport.world_size,
        digest=settings_digest(spec.workload.meaning, settings),
        scalars=scalars,
        save_model=lambda state: save_state(workload, model, state, spec.out_dir / "model"),
    )
    trainer = Trainer(
        settings,
        workload.group_rows("train"),
        work,
        make_algorithm(model, settings, metered),
        metered,
        meter,
        files,
        on_progress,
        partition=partition,
    )
    with without_denormals(), checked_awaits():
        end = Position(settings.epochs, 0)
        run_now(trainer.run(agreed_checkpoint(files.checkpoints, transport, end=end)))
    # The last records of all ranks are written behind the barrier, for TensorBoard and the summary.
    run_now(transport.barrier())
    files.close()
    if transport.rank == 0:
        num_parameters = sum(parameter.numel() for parameter in model.module.parameters())
        write_summary(spec.out_dir, spec.workload.network_name, settings, num_parameters)
    run_now(transport.barrier())


def agreed_checkpoint(
    checkpoints: CheckpointFolder, transport: Transport, *, end: Position | None = None
) -> Checkpoint | None:
    """Return the newest checkpoint that rank 0 sees, on all ranks; None if it sees none.

    Rank 0 sends its place to the others, since shared storage may show different checkpoints to the
    ranks right after a crash. `end`: the end of the run, behind which none counts.

    Raises:
        CheckpointError: The checkpoint is damaged, or this rank does not see it.
    """
    # The message is epoch, step and number of workers, of which 0 means no checkpoint.
    message = np.zeros(3, dtype=np.int64)
    latest = checkpoints.latest(end=end) if transport.rank == 0 else None
    if latest is not None:
        message[:] = latest.epoch, latest.step, latest.world_size
    run_now(transport.broadcast(message))
    epoch, step, world_size = message.tolist()
    if world_size == 0:
        return None
    return checkpoints.await_complete(Position(epoch, step), world_size)


@contextmanager
def without_denormals() -> Iterator[None]:
    """Treat denormal numbers, those too small for full precision, as 0 within the context.

    In vanishing gradients they make the backward pass of a GRU 2.5 times slower. The mode applies
    to the whole process, so it ends with the training.
    """
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def save_state(workload: Workload, model: FlatModel, state: ModelState, folder: Path) -> None:
    """Save a model with the given parameters and buffers; its own stay unchanged."""
    current_state = model.state()
    model.load(state)
    workload.save(model.module, folder)
    model.load(current_state)


def choose_device(name: str, workload: Workload) -> torch.device:
    """Return the device of this rank: a GPU, or the CPU; a GPU gets settings for exact results.

    The ranks of a machine take its GPUs in turn. `name` is `cpu`, `cuda` or `auto`. The latter
    takes a GPU if there is one, but leaves perceptrons on the CPU, where a step is shorter than the
    calls of a GPU.

    Raises:
        LaunchError: `train.device` is cuda, and there is no GPU.
    """
    available = torch.cuda.device_count()
    if name == "cpu" or (name == "auto" and not available):
        return torch.device("cpu")
    if name == "auto" and isinstance(compiled_engine(workload.network()), PerceptronEngine):
        return torch.device("cpu")
    if not available:
        raise LaunchError(
            "train.device is cuda, but torch sees no GPU; set it to auto or cpu, or check "
            "nvidia-smi."
        )
    # cuBLAS is deterministic only with a workspace of fixed size.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # By default cuDNN rounds the factors of float32 products to 10 bits (TF32), in recurrent
    # networks and convolutions. These settings keep full precision.
    cudnn: Any = torch.backends.cudnn  # Without types for these.
    cudnn.rnn.fp32_precision = cudnn.conv.fp32_precision = "ieee"
    return torch.device("cuda", local_rank() % available)


def describe_devices() -> str:
    """Return a phrase that names the GPUs that torch sees, or says that there are none."""
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    if not names:
        return "devices: CPU only (torch sees no GPU)"
    return f"devices: {', '.join(names)}"


def local_rank() -> int:
    """Return the number of this rank among those of its machine, from variables of the launcher.

    It is 0 without a launcher.
    """
    for name in (
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "MPI_LOCALRANKID",
        "PMI_LOCAL_RANK",
        "SLURM_LOCALID",
    ):
        if name in os.environ:
            return int(os.environ[name])
    return 0
