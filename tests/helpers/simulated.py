"""Small data, networks and clusters for tests in the simulator."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from training_runs import train_section

from hep_studies.simulator.cluster import ClusterSettings, ComputeTimes
from hep_studies.simulator.simulate import Simulated, simulate
from hep_studies.simulator.transport import SimNetwork
from hep_studies.simulator.virtual_time import VirtualClock
from training.algorithms import registry
from training.algorithms.base import Algorithm
from training.flat_model import FlatVectors
from training.loop.factories import make_algorithm
from training.loop.records import MemoryFiles, RunFiles
from training.readers.batch import Rows
from training.readers.memory import MemoryRows
from training.readers.skew import DirichletPartition
from training.readers.units import Position
from training.settings import TrainSettings


def constant_step_cluster(seconds: float, **more: object) -> ClusterSettings:
    """A cluster whose steps always take the same time."""
    return ClusterSettings.model_validate({"step_seconds": seconds, "event_seconds": 0.0, **more})


#: Steps take a virtual millisecond, messages a microsecond.
CLUSTER = constant_step_cluster(1e-3, latency_seconds=1e-6)
#: Steps of very unequal length, pauses, and slow messages: workers get far apart.
UNEVEN_CLUSTER = constant_step_cluster(
    1e-3,
    jitter=0.4,
    slow_ranks={0: 2.5},
    pause_probability=0.1,
    pause_seconds=3e-3,
    latency_seconds=2e-4,
)

STREAMING: dict[str, Any] = {"algorithm": "streaming-diloco", "local_steps": 3}
#: Every method on several workers.
PEER_METHODS: dict[str, dict[str, Any]] = {
    "ar-sgd": {"algorithm": "ar-sgd"},
    "local-sgd": {"algorithm": "local-sgd"},
    "diloco": {"algorithm": "diloco", "local_steps": 3},
    "streaming-diloco": {**STREAMING, "fragments": 2, "overlap": 1},
    "streaming-diloco in 4 bits": {**STREAMING, "fragments": 3, "overlap": 2, "bits": 4},
    "d-psgd": {"algorithm": "d-psgd"},
    "d-psgd on the exponential graph": {"algorithm": "d-psgd", "topology": "exponential"},
    "qg-dsgdm": {"algorithm": "qg-dsgdm"},
    "choco-sgd": {"algorithm": "choco-sgd", "fraction": 0.3},
    "gradient-tracking": {"algorithm": "gradient-tracking", "beta": 0.5},
    "sgp": {"algorithm": "sgp"},
    "sgp to two": {"algorithm": "sgp", "peers": 2},
    "sgp beside": {"algorithm": "sgp", "overlap": True},
    "sgp on a host": {"algorithm": "sgp", "overlap": True, "peers": 2, "exchange": "memory"},
    "ad-psgd": {"algorithm": "ad-psgd"},
    "swarm-sgd": {"algorithm": "swarm-sgd"},
    "swarm-sgd geometric": {"algorithm": "swarm-sgd", "local_steps_law": "geometric"},
    "ad-psgd on a host": {"algorithm": "ad-psgd", "exchange": "memory"},
    "swarm-sgd on a host": {"algorithm": "swarm-sgd", "exchange": "memory"},
    "mpca": {
        "algorithm": "mpca",
        "alpha": 0.4,
        "alpha_free": 1,
        "alpha_ramp": 2,
        "beta_ramp": 2,
        "gamma_ramp": 2,
    },
}
#: Those of them that gossip.
GOSSIP_METHODS = {
    name: chosen
    for name, chosen in PEER_METHODS.items()
    if chosen["algorithm"] in ("ad-psgd", "swarm-sgd")
}
#: Methods with a server.
SERVER_METHODS: dict[str, dict[str, Any]] = {
    "downpour": {"algorithm": "downpour"},
    "downpour zealous": {"algorithm": "downpour", "zealous": True, "local_steps": 3},
    "agn": {"algorithm": "agn", "local_steps": 3},
    "dynsgd": {"algorithm": "dynsgd", "local_steps": 2, "shards": 2},
    "adag": {"algorithm": "adag", "local_steps": 3},
    "adag by workers": {"algorithm": "adag", "local_steps": 2, "scaling": "worker", "gamma": 1e-2},
    "easgd": {"algorithm": "easgd", "local_steps": 3, "gradient": "moved"},
    "easgd together": {"algorithm": "easgd", "local_steps": 3, "synchronous": True},
    "eamsgd": {"algorithm": "eamsgd", "local_steps": 3, "delta": 0.5},
    "async-diloco": {
        "algorithm": "async-diloco",
        "local_steps": 2,
        "outer_momentum": 0.9,
        "early_momentum": 0.5,
        "dynamic_steps": False,
    },
    "sharded": {"algorithm": "sharded"},
    "sharded sparse beside": {
        "algorithm": "sharded",
        "overlap": "thread",
        "bound": 2,
        "drop_rate": 0.5,
    },
    "sharded with own steps": {
        "algorithm": "sharded",
        "overlap": "thread",
        "local_optimizer": True,
        "applies_sum": True,
    },
    "downpour with a bound": {"algorithm": "downpour", "staleness_bound": 2},
}
PARALLEL_METHODS = PEER_METHODS | SERVER_METHODS
ALL_METHODS = PARALLEL_METHODS | {"sgd": {"algorithm": "sgd", "workers": 1}}
#: Those of them without a joint model, around which SlowMo goes.
WITH_SLOWMO = [
    name
    for name, chosen in ALL_METHODS.items()
    if not registry.METHODS[chosen["algorithm"]].traits.joint_model
]


def toy_rows(
    num_rows: int, *, groups: int = 8, seed: int = 0, dtype: torch.dtype = torch.float64
) -> MemoryRows:
    """Events of three classes of equal size, divided by planes but for noise; four features."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(num_rows, 4))
    angles = 2 * np.pi / 3 * np.arange(3)
    planes = np.stack([np.cos(angles), np.sin(angles)])
    noise = 0.1 * rng.normal(size=(num_rows, 3))
    labels = (features[:, 1:3] @ planes + noise).argmax(axis=1)
    weights = rng.uniform(0.5, 1.5, num_rows)
    rows = Rows(
        (torch.tensor(features, dtype=dtype),),
        torch.tensor(labels),
        torch.tensor(weights, dtype=dtype),
    )
    bounds = np.arange(groups + 1) * num_rows // groups
    return MemoryRows(rows, 1, np.diff(bounds).tolist())


def toy_network(dtype: torch.dtype = torch.float64) -> nn.Module:
    """A small perceptron, always with the same weights."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).to(dtype)


def settings(**selected: Any) -> TrainSettings:
    """Short runs in double precision; keys of the method may stand beside it.

    `exchange` is no key of the training, and has no effect here.
    """
    selected.pop("exchange", None)
    defaults = {
        "workers": 4,
        "epochs": 2,
        "batch_size": 10,
        "learning_rate": 0.05,
        "precision": "float64",
    }
    name = selected.get("algorithm")
    if isinstance(name, str) and name in registry.METHODS:
        # Some methods have their own momentum, or are for plain SGD.
        selected |= registry.METHODS[name].traits.required_values
    return TrainSettings.model_validate(defaults | train_section(selected))


def run(
    *,
    train: MemoryRows | None = None,
    module: nn.Module | None = None,
    cluster: ClusterSettings = CLUSTER,
    **selected: Any,
) -> Simulated:
    """A simulated run over the toy data; `files` and `resume` are arguments of `simulate`."""
    options: dict[str, Any] = {
        name: selected.pop(name) for name in ("files", "resume") if name in selected
    }
    if selected.pop("exchange", "") == "memory":
        # All workers are on one host.
        cluster = cluster.model_copy(update={"workers_per_host": 100})
    if train is None:
        train = toy_rows(320)
    if module is None:
        module = toy_network()
    train_settings = settings(**selected)
    if train_settings.skew is not None:
        options["partition"] = DirichletPartition(
            train.rows.labels.numpy(),
            train.group_rows,
            world_size=train_settings.workers,
            alpha=train_settings.skew.dirichlet,
            seed=train_settings.seed,
        )
    val = toy_rows(60, groups=1, seed=1)
    return simulate(module, train, val, train_settings, cluster, **options)


def models(simulated: Simulated) -> NDArray[np.float64]:
    """(workers, parameters) at the end of a run."""
    return simulated.parameters.numpy().astype(np.float64)


class ListedPartners:
    """Partners from a list, one entry for each step; None begins no average."""

    def __init__(self, partners: Sequence[int | None]) -> None:
        self._partners = list(partners)
        self._next = 0

    def next(self) -> int | None:
        partner = self._partners[self._next % len(self._partners)]
        self._next += 1
        return partner

    def state(self) -> dict[str, Any]:
        return {"next": self._next}

    def load_state(self, state: dict[str, Any]) -> None:
        self._next = state["next"]


class VectorRow(FlatVectors):
    """A bare vector of parameters and one of gradients, as the algorithms see a model."""

    def __init__(self, initial: NDArray[np.float64]) -> None:
        flat = nn.Parameter(torch.tensor(initial), requires_grad=False)
        super().__init__(flat, torch.zeros_like(flat), [flat.shape])
        self.parameters = flat.numpy()


def matched_partners(
    rounds: Sequence[Sequence[tuple[int, int]]], begins: Callable[..., int] = min
) -> Callable[[int], ListedPartners]:
    """Partners from a list of matchings, one for each step, over and over.

    `begins` picks who of a pair begins the average.
    """

    def partners(rank: int) -> ListedPartners:
        return ListedPartners([_partner(rank, pairs, begins) for pairs in rounds])

    return partners


def _partner(rank: int, pairs: Sequence[tuple[int, int]], begins: Callable[..., int]) -> int | None:
    return next((sum(pair) - rank for pair in pairs if rank == begins(pair)), None)


class MemoryCheckpoints:
    """All checkpoints of a run, as bytes in memory; stands in for a `CheckpointFolder`."""

    def __init__(self) -> None:
        self.content: dict[tuple[int, int], dict[int, bytes]] = {}
        self._files: dict[int, MemoryFiles] = {}

    def files(self, rank: int) -> RunFiles:
        self._files[rank] = MemoryFiles()
        self._files[rank].checkpoints = self  # type: ignore[assignment]
        return self._files[rank]

    def best(self, rank: int) -> NDArray[Any] | None:
        best = self._files[rank].best
        return None if best is None else best.parameters

    def at(self, position: tuple[int, int]) -> Any:
        """Resume after a number of epochs, and steps of the next; stands in for a `Checkpoint`."""
        chunks, (epoch, step) = self.content[position], position

        def load(rank: int) -> Any:
            return torch.load(io.BytesIO(chunks[rank]), weights_only=True)

        return SimpleNamespace(
            epoch=epoch,
            step=step,
            position=Position(epoch, step),
            world_size=len(chunks),
            load=load,
        )

    def write_rank(
        self, positions: Sequence[tuple[int, int]], _: int, rank: int, document: dict[str, Any]
    ) -> None:
        buffer = io.BytesIO()
        torch.save(document, buffer)
        for position in positions:
            self.content.setdefault(position, {})[rank] = buffer.getvalue()

    def complete(self, *_: object) -> None: ...


class StepRecorder:
    """As `before_step` of `LinearGradients.drive`, keeps algorithms and begin of each step."""

    def __init__(self) -> None:
        self.algorithms: dict[int, Algorithm] = {}
        self.began: dict[int, list[float]] = {}

    def __call__(self, rank: int, _step: int, algorithm: Algorithm) -> None:
        self.algorithms[rank] = algorithm
        self.began.setdefault(rank, []).append(algorithm.transport.now())


class LinearGradients:
    """Workers with quadratic losses of equal Hessian: g_i,t(x) = h x - b_i,t, with random b.

    `hessian`: h; 0 makes the gradients noise that does not depend on x. `noise`: standard deviation
    of b.
    """

    def __init__(
        self,
        *,
        workers: int,
        steps: int,
        seed: int,
        size: int = 5,
        hessian: float = 0.7,
        noise: float = 0.7,
    ) -> None:
        rng = np.random.default_rng(seed)
        self.workers, self.steps, self.hessian = workers, steps, hessian
        self.pulls = noise * rng.normal(size=(workers, steps, size))
        self.initial = rng.normal(size=size)

    def gradient(self, rank: int, step: int, at: NDArray[np.float64]) -> NDArray[np.float64]:
        """g of a worker at a step."""
        gradient: NDArray[np.float64] = self.hessian * at - self.pulls[rank, step]
        return gradient

    def gradients(self, step: int, at: NDArray[np.float64]) -> NDArray[np.float64]:
        """g of all workers at a step; both (workers, parameters)."""
        return np.array([self.gradient(rank, step, at[rank]) for rank in range(self.workers)])

    def drive(
        self,
        *,
        cluster: ClusterSettings = CLUSTER,
        partners: Callable[[int], ListedPartners] | None = None,
        initial: NDArray[np.float64] | None = None,
        before_step: Callable[[int, int, Algorithm], None] = lambda *_: None,
        results: NDArray[np.float64] | None = None,
        **selected: Any,
    ) -> NDArray[np.float64]:
        """The models after each step of a simulated algorithm, (steps, workers, parameters).

        `initial`: (workers, parameters), where workers start from different points. `results`: gets
        the models that the method returns. `exchange`: whether pairs average in `memory` or through
        `sockets`.
        """
        clock, protocol = VirtualClock(), selected.pop("exchange", "memory")
        train = settings(**({"workers": self.workers, "learning_rate": 0.1} | selected))
        network = SimNetwork(clock, cluster, self.workers, protocol=protocol)
        actual = np.empty((self.steps, self.workers, len(self.initial)))

        async def work(rank: int) -> None:
            model = VectorRow(self.initial if initial is None else initial[rank])
            transport = network.transports()[rank]
            algorithm = make_algorithm(model, train, transport)
            if partners is not None:
                of_method: Any = algorithm
                while "base" in vars(of_method):
                    of_method = of_method.base
                of_method.partners = partners(rank)
            times = ComputeTimes(cluster, seed=1, rank=rank)
            await algorithm.start()
            for step in range(self.steps):
                before_step(rank, step, algorithm)

                async def compute(step: int = step) -> None:
                    gradient = self.gradient(rank, step, model.parameters.copy())
                    await clock.sleep(times.draw(1))
                    model.write_gradient(gradient)

                await algorithm.step(compute, 1)
                await algorithm.current(actual[step, rank])
            await algorithm.quiesce()
            if results is not None:
                await algorithm.flush()
                await algorithm.result(results[rank])
            await algorithm.close()

        for rank in range(self.workers):
            clock.spawn(work(rank), f"worker {rank}")
        clock.run()
        return actual
