"""An agent: trains on its share of each pass over the rows, and answers the tasks of exchange cycles between steps."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import cast

from training.agents.lifelines import AgentId
from training.agents.local import AgentStart
from training.agents.messages import AbsentError, Given, Install, Message, Take
from training.agents.worker import PulledWorker
from training.algorithms.mpca_rules import JointModelSettings
from training.launching.rank import RunSpec, opened
from training.loop.account import Account
from training.loop.making import make_worker
from training.loop.metering import Meter
from training.loop.schedule import learning_rate
from training.readers.sharding import part_of, plan_epoch, rows_in, share_of
from training.settings import TrainSettings
from training.transports.basics import run_now
from training.transports.transport import SingleTransport
from training.workloads.work import Work


class Agent:
    """The training of one partition.

    Args:
        settings: Settings of the training.
        work: The computation.
        worker: The method.
        rows: Rows of each row group of the training split.
        meter: The agent's time and bytes.
        agent: Numbers of the partition and of the agent.
    """

    def __init__(
        self,
        settings: TrainSettings,
        work: Work,
        worker: PulledWorker,
        rows: Sequence[int],
        meter: Meter,
        *,
        agent: AgentId,
    ) -> None:
        self._settings, self._work, self._worker, self._rows = settings, work, worker, rows
        self._meter = meter
        self._account = Account(work, worker, meter)
        self._id = agent
        self._asked: deque[tuple[Message, Future[Given | None]]] = deque()
        self._has_asked = threading.Condition()
        self._is_stopped = False
        self._used = self._used_before = 0
        self._last: tuple[Take, Given] | None = None
        self._order = Take(-1, 0, 0, False, 0.0)

    def answer(self, message: Message) -> Given | None:
        """Answer a message at the next step border; called by other threads.

        Raises:
            AbsentError: The agent ends first.
        """
        future: Future[Given | None] = Future()
        with self._has_asked:
            if self._is_stopped:
                raise AbsentError(f"{self._id}: at its end")
            self._asked.append((message, future))
            self._has_asked.notify()
        return future.result()

    def stop(self) -> None:
        """End the training at the next step border; called by other threads."""
        with self._has_asked:
            self._is_stopped = True
            self._has_asked.notify()

    def run(self, first_pass: int = 0, on_ready: Callable[[], None] = lambda: None) -> None:
        """Train until `stop`, pass by pass.

        Args:
            first_pass: Number of the first pass; agents of a partition that follow each other read in other orders.
            on_ready: Called before the first step.
        """
        try:
            self._train(first_pass, on_ready)
        finally:
            self.stop()
            for _, future in self._asked:
                future.set_exception(AbsentError(f"{self._id}: ended before it answered"))

    def _train(self, first_pass: int, on_ready: Callable[[], None]) -> None:
        self._meter.lap("start")
        self._account.begin()
        on_ready()
        number = first_pass
        while not self._is_stopped:
            self._pass(number)
            number += 1

    def _pass(self, number: int) -> None:
        """Train once on this agent's share of the rows: all agents together use each row once in a pass."""
        settings, batch_size = self._settings, self._settings.batch_size
        plan = plan_epoch(
            self._rows, world_size=settings.workers, batch_size=batch_size, seed=settings.seed, epoch=number
        )
        whole = share_of(plan, rank=self._id.partition, epoch=number)
        row, num_rows = 0, rows_in(whole.pieces)
        while row < num_rows and not self._is_stopped:
            share = part_of(whole, row, num_rows, batch_size=batch_size)
            self._work.begin(share)
            for size in share.sizes:
                allowed = self._wait_for(size)
                if not allowed:
                    return
                if allowed < size:
                    self._work.begin(part_of(whole, row, row + allowed, batch_size=batch_size))
                self._step()
                row += allowed
                if allowed < size:
                    break

    def _wait_for(self, size: int) -> int:
        """Answer what was asked; returns the size of the next step, after the limit allows it, or 0 at the end."""
        if self._asked:
            self._answer_all()
        while not self._is_stopped:
            left = self._order.limit - self._used
            if left >= size or (left > 0 and self._order.to_the_limit):
                return min(left, size)
            with self._has_asked:
                self._has_asked.wait_for(lambda: self._asked or self._is_stopped)
            self._meter.lap("wait")
            self._answer_all()
        return 0

    def _answer_all(self) -> None:
        while self._asked:
            message, future = self._asked.popleft()
            if isinstance(message, Install):
                self._worker.install(message)
                future.set_result(None)
            else:
                future.set_result(self._give(message))
        self._meter.lap("communicate")

    def _give(self, message: Take) -> Given:
        """The contribution to a cycle; the same again if a task is repeated."""
        if self._last is not None and self._last[0].cycle == message.cycle:
            return self._last[1]
        self._order, self._used_before = message, self._used
        contribution = self._worker.contribute(message.shard)
        self._meter.bytes += contribution.nbytes
        account = {
            **self._account.state(),
            "used": self._used,
            "square": self._worker.square,
            "buffers": self._work.buffers(),
        }
        given = Given(self._id, contribution, account)
        self._last = message, given
        return given

    def _step(self) -> None:
        num_samples = self._work.next_batch()
        self._meter.lap("read")
        self._used += num_samples
        if not self._settings.schedule.is_constant:
            # All agents together have probably used as many more as this one for each of them.
            since = (self._used - self._used_before) * self._settings.workers / sum(self._rows)
            done = min(self._order.epochs_done + since, self._settings.epochs)
            self._worker.optimizer.param_groups[0]["lr"] = learning_rate(self._settings, done)
        run_now(self._worker.step(self._work.compute_gradient, num_samples))
        self._account.steps += 1
        self._meter.lap("compute")


def make_agent(spec: RunSpec, start: AgentStart, joint: list[Install]) -> Agent:
    """Build network, reader and method.

    Args:
        spec: The run.
        start: The agent.
        joint: The shards of the projected joint model.
    """
    settings, transport = spec.train, SingleTransport()
    meter = Meter(transport.now)
    workload, _, work = opened(spec, transport, rank=start.agent.number, meter=meter)
    worker = make_worker(work.model, settings, transport)
    pulled = PulledWorker(cast("JointModelSettings", settings.algorithm), worker, joint)
    return Agent(settings, work, pulled, workload.group_rows("train"), meter, agent=start.agent)
