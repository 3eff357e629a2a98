"""A run with agents, from its spec to its summary; the driver's part."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from training.agents.crew import Cluster, Crew
from training.agents.driver import Cycle, Driver
from training.agents.epochs import EpochEnds
from training.agents.ledger import Ledger
from training.agents.lifelines import Lifelines
from training.agents.local import Home
from training.launching.launcher import refuse_impossible
from training.launching.rank import RunSpec, disk_files, opened
from training.launching.rank_reports import LaunchFiles
from training.loop.metering import Meter
from training.loop.progress import Progress
from training.loop.summary import write_summary
from training.readers.sharding import plan_epoch
from training.transports.transport import SingleTransport

#: Makes the connection to the cluster, for the folder of the run's agents.
MakeCluster = Callable[[Home, RunSpec], Cluster]
_CYCLES: Final = "cycles.jsonl"


def train_with_agents(
    spec: RunSpec,
    make_cluster: MakeCluster,
    *,
    address: tuple[str, str],
    on_progress: Callable[[Progress], None],
    on_loss: Callable[[str], None] = lambda _: None,
) -> None:
    """Train with one agent for each partition; resumes from the newest checkpoint in `spec.out_dir`.

    Writes the files of `training.launching.rank.train`, with a record of each partition instead of each rank, and
    `cycles.jsonl` with a line for each exchange cycle.

    Args:
        spec: The run.
        make_cluster: Makes the connection to the cluster.
        address: Where the driver listens for its agents, and its name for them.
        on_progress: Called after each cycle.
        on_loss: Called with a sentence when an agent is lost.

    Raises:
        ShardError: There are fewer events than agents.
        NoEventsError: A split has no events.
        LaunchError: An agent failed, or agents were lost too often.
        DivergedError: The loss is no longer finite.
    """
    refuse_impossible(spec)
    settings, count = spec.train, spec.train.workers
    spec.save(spec.out_dir / "run.json")
    losses = LaunchFiles(spec.out_dir)
    transport = SingleTransport()
    workload, _, work = opened(spec, transport, rank=0, meter=Meter(transport.now))
    rows = workload.group_rows("train")
    plan_epoch(rows, world_size=count, batch_size=settings.batch_size, seed=settings.seed, epoch=0)
    ledger = Ledger(rows=sum(rows), epochs=settings.epochs, batch_size=settings.batch_size, partitions=count)
    # Ranks of MPI cannot continue from a checkpoint of the driver, and neither the other way round.
    files = [
        disk_files(spec, workload, work.model, rank=rank, world_size=count, kind="-agents") for rank in range(count)
    ]
    epochs = EpochEnds(settings, work, files, spec.out_dir / _CYCLES)
    start = work.model.empty()
    work.model.read(start)

    def note(words: str) -> None:
        losses.note_loss(words)
        on_loss(words)

    with ExitStack() as stack:
        token = secrets.token_hex(32)
        stack.callback(epochs.stop)
        lifelines = Lifelines(address[0], token)
        stack.callback(lifelines.close)
        home = Home(secrets.token_hex(16), (address[1], lifelines.port), token)
        cluster = make_cluster(home, spec)
        crew = Crew(settings, cluster, lifelines, ledger, note)
        driver = Driver(settings, start, ledger, crew, cluster)
        epochs.begin(files[0].checkpoints.latest(), ledger, driver)
        show = _Display(ledger, epochs, on_progress)

        def after(cycle: Cycle) -> None:
            show(cycle)
            epochs.after(cycle, ledger, driver, num_lost=crew.num_lost)

        if ledger.epoch < ledger.epochs:
            driver.run(after)
            epochs.end(ledger, driver, num_lost=crew.num_lost)
    epochs.close()
    write_summary(spec.out_dir, spec.workload.network_name, settings, work.model.flat.numel())


class _Display:
    """Shows the progress of a run after each cycle."""

    def __init__(self, ledger: Ledger, epochs: EpochEnds, on_progress: Callable[[Progress], None]) -> None:
        self._ledger, self._epochs, self._on_progress = ledger, epochs, on_progress
        self._began, self._used_before, self._loss = time.monotonic(), ledger.used, math.nan

    def __call__(self, _: Cycle) -> None:
        ledger = self._ledger
        totals = ledger.epoch_totals
        # Of the epoch before, until agents have answered in this one.
        self._loss = totals["loss"] / totals["weight"] if totals["weight"] else self._loss
        self._on_progress(
            Progress(
                epoch=min(ledger.epoch + 1, ledger.epochs),
                num_epochs=ledger.epochs,
                step=min(ledger.used - ledger.epoch * ledger.rows, ledger.rows),
                num_steps=ledger.rows,
                loss=self._loss,
                samples_per_second=(ledger.used - self._used_before) / (time.monotonic() - self._began),
                consensus_distance=self._epochs.distance,
            )
        )
