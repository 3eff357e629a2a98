"""What a user may choose about training."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from training.topology import TopologyName


class AlgorithmName(StrEnum):
    """How workers learn together."""

    SGD = "sgd"
    """One worker."""
    AR_SGD = "ar-sgd"
    """Gradients averaged over all workers at every step."""
    LOCAL_SGD = "local-sgd"
    """Parameters averaged over all workers after some local steps."""
    D_PSGD = "d-psgd"
    """Parameters averaged with those of all neighbours at every step."""
    AD_PSGD = "ad-psgd"
    """Parameters averaged with those of a random neighbour, beside the computation."""
    SWARM_SGD = "swarm-sgd"
    """Parameters averaged with those of a random neighbour after some local steps."""


#: Methods of random pairs, whose workers do not wait for each other.
GOSSIP = (AlgorithmName.AD_PSGD, AlgorithmName.SWARM_SGD)


#: Keys of `TrainSettings` that only some methods look at.
_METHODS_OF: Final = {
    "local_steps": (AlgorithmName.LOCAL_SGD, AlgorithmName.SWARM_SGD),
    "local_steps_law": (AlgorithmName.SWARM_SGD,),
    "topology": (AlgorithmName.D_PSGD, *GOSSIP),
    "exchange": GOSSIP,
    "overlap": (AlgorithmName.AD_PSGD,),
}


class OptimizerName(StrEnum):
    """The base optimiser: how a gradient becomes an update."""

    ADAM = "adam"
    SGD = "sgd"


class StatePolicy(StrEnum):
    """What happens to the optimiser's momentum and moments at an exact average of the models."""

    KEEP = "keep"
    """Each worker keeps its own, as SlowMo does with Adam (Wang et al. 2019, section 5)."""
    AVERAGE = "average"
    """They are averaged like the models."""
    RESET = "reset"
    """They start from zero again, as SlowMo does with the momentum of SGD."""


class SlowMoSettings(BaseModel):
    """Slow momentum around the algorithm (Algorithm 4 of the thesis)."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    tau: int = Field(default=12, ge=1)
    """Steps of the algorithm between two outer steps."""
    alpha: float = Field(default=1.0, gt=0)
    """Slow learning rate."""
    beta: float = Field(default=0.6, ge=0, lt=1)
    """Slow momentum factor."""
    exact_average: bool | None = None
    """Average all workers before the outer step; by default only for `ar-sgd` and `local-sgd`, as in the thesis."""


class ScheduleSettings(BaseModel):
    """The learning rate over the run, by the samples that all workers together have seen."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    warmup_epochs: float = Field(default=0.0, ge=0)
    """The rate rises linearly over so many epochs, from that of one worker where it is scaled, else from 0."""
    decay: Literal["constant", "step", "cosine"] = "constant"
    """What comes after: nothing, a division at `milestones`, or half a cosine down to `final_fraction`."""
    milestones: list[float] = []
    """Epochs at which `step` multiplies the rate by `factor`."""
    factor: float = Field(default=0.1, gt=0, lt=1)
    """Of `step`."""
    final_fraction: float = Field(default=0.01, gt=0, le=1)
    """Of `cosine`: the rate at the end of the last epoch, as a fraction."""

    @property
    def is_constant(self) -> bool:
        """Whether the rate never changes."""
        return self.decay == "constant" and not self.warmup_epochs


class TrainSettings(BaseModel):
    """How the network is trained."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)
    #: Keys that change how fast, not what, is computed: they never make a stage stale.
    SPEED_ONLY: ClassVar[frozenset[str]] = frozenset(
        {
            "cache",
            "checkpoint_steps",
            "max_restarts",
            "launcher",
            "launcher_args",
            "on_rank_loss",
            "reader",
            "stall_seconds",
            "tensorboard",
        }
    )

    algorithm: AlgorithmName = AlgorithmName.AR_SGD
    """`sgd` on one worker; `ar-sgd`, `local-sgd`, `d-psgd`, `ad-psgd`, `swarm-sgd` on any number."""
    workers: int = Field(default=1, ge=1)
    """MPI ranks; each reads its own row groups."""
    epochs: int = Field(default=20, ge=1)
    """Passes over the training split."""
    batch_size: int = Field(default=128, ge=1)
    """Events per worker and step, at most: steps of an epoch are of nearly equal size."""
    optimizer: OptimizerName = OptimizerName.ADAM
    """Base optimiser."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """Learning rate of one worker."""
    scale_learning_rate: bool = True
    """Multiply the rate by the number of workers for `ar-sgd` with `sgd` (the linear rule; never with `adam`)."""
    schedule: ScheduleSettings = ScheduleSettings()
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """Momentum of the `sgd` optimiser."""
    nesterov: bool = False
    """Nesterov's form of it."""
    weight_decay: float = Field(default=0.0, ge=0)
    """L2 penalty."""
    seed: int = Field(default=1, ge=0, lt=2**32)
    """Of the initial weights, the order of events and the choice of partners."""
    warm_start: bool = False
    """Begin with weights and scaling of the model in use (`promote`), where there is one of the same layers."""
    precision: Literal["float32", "float64"] = "float32"
    """Floating point numbers of the network."""
    local_steps: int = Field(default=3, ge=1)
    """H: steps before an average, of `local-sgd` and `swarm-sgd`."""
    local_steps_law: Literal["fixed", "geometric"] = "fixed"
    """Of `swarm-sgd`: always H steps, or a geometrically distributed number with mean H."""
    topology: TopologyName | None = None
    """Who may talk to whom in `d-psgd` (by default `ring`), `ad-psgd` and `swarm-sgd` (by default `complete`)."""
    exchange: Literal["locked", "additive"] = "locked"
    """How pairs average: under locks, or by adding differences without locks (reads may then be of mixed age)."""
    overlap: Literal["thread", "inline"] = "inline"
    """Of `ad-psgd`: average in a thread beside the gradient, or just before it; the gradient is the same."""
    slowmo: SlowMoSettings | None = None
    """Slow momentum around the algorithm; not set, none."""
    optimizer_state: StatePolicy | None = None
    """What becomes of momentum and moments at exact averages: `keep`, `average`, `reset`. By default they are kept,
    but reset by SlowMo for `sgd`."""
    reader: Literal["petastorm", "arrow"] = "petastorm"
    """Both give the same batches; `arrow` is the faster."""
    cache: Literal["none", "memory"] = "none"
    """Keep what was read in memory (`arrow` only)."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes a GPU where there is one: each rank the one of its place on the machine, modulo their number."""
    checkpoint_steps: int | None = Field(default=None, ge=1)
    """Steps between checkpoints within an epoch; there is always one at its end."""
    on_rank_loss: Literal["restart", "shrink", "stop"] = "restart"
    """When a rank is lost: start all again from the last checkpoint, go on with the survivors (under a fault-tolerant
    mpirun; `ad-psgd` and `swarm-sgd` restart instead), or stop."""
    max_restarts: int = Field(default=3, ge=0)
    """Losses of ranks in one run before it stops."""
    stall_seconds: float = Field(default=300.0, gt=0)
    """Without a step of any rank for so long, the run ends with a report of what each was doing."""
    tensorboard: bool = False
    """Write scalars for TensorBoard too (`pip install tensorboardX`); of a network that is trained already, from its
    records."""
    launcher: Literal["mpirun", "srun"] = "mpirun"
    """What starts the ranks; `srun` within a SLURM allocation, with `--mpi=pmix`."""
    launcher_args: list[str] = []
    """Further arguments of it, for example `[--hostfile, hosts.txt]` of mpirun."""

    @model_validator(mode="after")
    def _workers_suit_algorithm(self) -> Self:
        if self.algorithm is AlgorithmName.SGD and self.workers != 1:
            raise ValueError(
                f"algorithm sgd runs on one worker, not {self.workers}; use ar-sgd or another method for several"
            )
        return self

    @model_validator(mode="after")
    def _keys_suit_each_other(self) -> Self:
        if self.cache == "memory" and self.reader != "arrow":
            raise ValueError("cache: memory needs reader: arrow")
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0")
        if self.schedule.decay == "step" and not self.schedule.milestones:
            raise ValueError("schedule.decay: step needs schedule.milestones, for example [10, 15]")
        return self

    @model_validator(mode="after")
    def _survivors_can_go_on(self) -> Self:
        if self.on_rank_loss != "shrink":
            return self
        if self.launcher == "srun":
            raise ValueError("on_rank_loss: shrink needs a fault-tolerant mpirun, not srun; use restart")
        if self.algorithm is AlgorithmName.D_PSGD and self.graph in (TopologyName.HYPERCUBE, TopologyName.TORUS):
            raise ValueError(
                f"on_rank_loss: shrink needs a topology for any number of workers; there is no {self.graph} for most. "
                f"Use restart, or topology ring or exponential"
            )
        return self

    @model_validator(mode="after")
    def _slowmo_means_something(self) -> Self:
        together = self.algorithm in (AlgorithmName.AR_SGD, AlgorithmName.LOCAL_SGD)
        if self.slowmo is not None and self.slowmo.exact_average is False and together:
            raise ValueError(
                f"slowmo.exact_average: false means nothing for {self.algorithm}, which averages all workers anyway; "
                f"leave it out, or use d-psgd, ad-psgd or swarm-sgd"
            )
        exact = self.algorithm is AlgorithmName.LOCAL_SGD or (self.slowmo is not None and self.slowmo_is_exact)
        if self.optimizer_state is StatePolicy.AVERAGE and not exact:
            raise ValueError(
                "optimizer_state: average needs exact averages: local-sgd, or slowmo with exact_average: true"
            )
        return self

    @model_validator(mode="after")
    def _no_number_of_ranks(self) -> Self:
        numbers = ("-n", "-np", "-c", "--n", "--np") if self.launcher == "mpirun" else ("-n", "--ntasks")
        for word in self.launcher_args:
            if word.split("=")[0] in (*numbers, "--ntasks"):
                raise ValueError(f"launcher_args: '{word}' sets the number of ranks; set train.workers instead")
        return self

    @property
    def effective_learning_rate(self) -> float:
        """The rate that the optimiser gets: scaled by the linear rule (Goyal et al. 2017) where that applies."""
        return self.learning_rate * self.rate_scale

    @property
    def rate_scale(self) -> int:
        """By how much the linear rule scales the learning rate."""
        linear = self.algorithm is AlgorithmName.AR_SGD and self.optimizer is OptimizerName.SGD
        return self.workers if linear and self.scale_learning_rate else 1

    @property
    def slowmo_is_exact(self) -> bool:
        """Whether SlowMo averages all workers: by default not for the methods that gossip."""
        if self.slowmo is None or self.slowmo.exact_average is None:
            return self.algorithm not in (*GOSSIP, AlgorithmName.D_PSGD)
        return self.slowmo.exact_average

    @property
    def graph(self) -> TopologyName:
        """The communication graph."""
        default = TopologyName.RING if self.algorithm is AlgorithmName.D_PSGD else TopologyName.COMPLETE
        return self.topology or default

    @property
    def state_policy(self) -> StatePolicy:
        """What becomes of the optimiser's state at exact averages."""
        if self.optimizer_state is not None:
            return self.optimizer_state
        slow_sgd = self.slowmo is not None and self.optimizer is OptimizerName.SGD
        return StatePolicy.RESET if slow_sgd else StatePolicy.KEEP

    def advice(self) -> list[str]:
        """What may well be meant otherwise; a sentence each."""
        return self._without_effect() + self._about_slowmo()

    def _without_effect(self) -> list[str]:
        """Keys that were changed, and that this method does not look at."""
        fields = type(self).model_fields
        changed = [key for key in _METHODS_OF if getattr(self, key) != fields[key].default]
        found = [
            f"{key} has no effect on {self.algorithm}, only on {', '.join(_METHODS_OF[key])}."
            for key in changed
            if self.algorithm not in _METHODS_OF[key]
        ]
        if self.momentum and self.optimizer is not OptimizerName.SGD:
            found.append(f"momentum has no effect on the optimizer {self.optimizer}, only on sgd.")
        if self.schedule.milestones and self.schedule.decay != "step":
            found.append(f"schedule.milestones have no effect on the decay {self.schedule.decay}, only on step.")
        return found

    def _about_slowmo(self) -> list[str]:
        if self.slowmo is None:
            return []
        found = []
        if not self.slowmo_is_exact and self.slowmo.beta > 0.8:
            found.append(
                f"slowmo.beta {self.slowmo.beta:g} without exact average: above 0.8 the models of the workers drift "
                f"apart faster than pairs bring them together; watch the consensus distance."
            )
        if self.workers < 4:
            found.append(f"slowmo with {self.workers} worker(s): it pays from about 4 workers on.")
        per_window = self.slowmo.tau / (self.local_steps if self.algorithm is AlgorithmName.SWARM_SGD else 1)
        if self.algorithm in GOSSIP and not self.slowmo_is_exact and per_window < 2:
            found.append(
                f"slowmo.tau {self.slowmo.tau} gives {per_window:.2g} averages per outer step: below 2 the models "
                f"of the workers may drift apart."
            )
        return found
