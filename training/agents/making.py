"""Builds an agent from the spec of its run."""

from __future__ import annotations

from typing import cast

from training.agents.agent import Agent
from training.agents.local import AgentStart
from training.agents.messages import Install
from training.agents.partition import Partition
from training.agents.worker import PulledWorker
from training.algorithms.mpca_rules import JointModelSettings
from training.launching.rank import RunSpec, opened
from training.loop.making import make_worker
from training.loop.metering import Meter
from training.transports.transport import SingleTransport


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
    rows = workload.group_rows("train")
    partition = Partition(
        rows,
        index=start.agent.partition,
        count=settings.workers,
        batch_size=settings.batch_size,
        seed=settings.seed,
    )
    return Agent(
        settings,
        work,
        PulledWorker(cast("JointModelSettings", settings.algorithm), worker, joint),
        partition,
        meter,
        agent=start.agent,
        num_samples=sum(rows),
    )
