"""Settings of the training: algorithm, optimiser, learning rate, readers and launcher."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import Field, WrapValidator, model_validator

from hep_core.settings_section import Needs, SettingsSection
from training.algorithms.base import StatePolicy
from training.algorithms.method import Traits
from training.algorithms.registry import METHODS, AnyMethod, SlowMoSettings
from training.allocation import AUTO, WorkersOfAllocation, number_of_workers
from training.decorrelate_settings import DecorrelateSettings
from training.errors import IdleSettingError
from training.schedule_settings import ScheduleSettings
from training.skew_settings import SkewSettings

#: Seeds are below this number.
SEEDS: Final = 2**32
#: The method if the config names none.
_DEFAULT: Final[Any] = "ar-sgd"


class OptimizerName(StrEnum):
    """The base optimiser: how a gradient becomes an update."""

    ADAM = "adam"
    ADAMW = "adamw"
    SGD = "sgd"
    MUON = "muon"


ReaderKind = Literal["petastorm", "arrow"]


class TrainSettings(SettingsSection):
    """How the network is trained."""

    #: Keys that change the speed or the number of trainings, but no result: they never make a stage
    #: stale.
    SPEED_ONLY: ClassVar[frozenset[str]] = frozenset(
        {
            "checkpoint_steps",
            "max_restarts",
            "launcher",
            "launcher_args",
            "reader",
            "seeds",
            "stall_seconds",
            "tensorboard",
            "threads",
        }
    )

    NEEDS: ClassVar[tuple[Needs, ...]] = (
        Needs("momentum", "optimizer: sgd", lambda train: train.optimizer is OptimizerName.SGD),
        Needs(
            "staleness_bound",
            "a method whose workers do not step together anyway, such as ad-psgd",
            lambda train: not train.traits.synchronous,
        ),
        Needs(
            "decorrelate",
            "a batch_size of at least 3, since two events are always correlated",
            lambda train: train.batch_size >= 3,
        ),
        Needs(
            "optimizer_state",
            "exact averages of the models, such as those of local-sgd or slowmo",
            lambda train: train.slowmo is not None or train.traits.averages_models,
        ),
        Needs(
            "optimizer_state",
            "an optimizer with a state, which sgd has only with momentum",
            lambda train: (
                train.optimizer_state is not StatePolicy.RESET or train.optimizer_has_state
            ),
        ),
        Needs(
            "slowmo.exact_average",
            "a method that does not average all workers exactly itself, such as one of pairs or "
            "neighbours",
            lambda train: train.slowmo.exact_average or not train.traits.exact_average,
        ),
        *(
            Needs(
                key,
                "launcher: mpirun, srun or spark",
                lambda train: train.launcher != "spark-agents",
            )
            for key in ("launcher_args", "staleness_bound", "algorithm.network")
        ),
        Needs(
            "sharding",
            "workers that may take different numbers of steps: no exact averages, and no "
            "staleness_bound",
            lambda train: train.sharding == "static" or not train.traits.equal_steps,
        ),
    )

    algorithm: AnyMethod = Field(default=_DEFAULT, validate_default=True)
    """Algorithm: a name, or its `name` with keys of its own, such as `{name: local-sgd,
    local_steps: 4}`."""
    workers: Annotated[int, WrapValidator(number_of_workers)] = Field(default=1, ge=1)
    """Number of workers (MPI ranks), at least 1; each reads its own row groups. `auto`: one for
    each core that the command may use, as far as its memory holds them."""
    threads: int = Field(default=1, ge=1)
    """Number of threads of torch, OpenMP and BLAS in each worker, each task of the grid search, and
    the evaluation, at least 1. More slow a busy machine down."""
    epochs: int = Field(default=20, ge=1)
    """Number of passes over the training split, at least 1."""
    batch_size: int = Field(default=32, ge=1)
    """Highest number of events per worker and step; all steps of an epoch have nearly equal
    size."""
    optimizer: OptimizerName = OptimizerName.ADAM
    """Base optimiser of each worker: `adam`, `adamw` (Adam whose weight decay shrinks the weights),
    `sgd`, or `muon` (orthogonal updates of the matrices before the last layer, else `adamw`)."""
    learning_rate: float = Field(default=3e-3, gt=0)
    """Learning rate of one worker, greater than 0."""
    scale_learning_rate: bool = True
    """Whether `ar-sgd` with the optimizer `sgd` multiplies the learning rate by the number of
    workers (linear rule)."""
    schedule: ScheduleSettings = ScheduleSettings()
    momentum: float = Field(default=0.0, ge=0, lt=1)
    """Momentum of the `sgd` optimiser, at least 0 and below 1."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Factor of the L2 penalty on the weights, or of their decay with `adamw` and `muon`; 0 for
    none."""
    seed: int = Field(default=1, ge=0, lt=SEEDS)
    """Seed of the initial weights, the order of events and the choice of partners; 0 to 2**32 -
    1."""
    seeds: int = Field(default=1, ge=1)
    """Number of trainings of each network, with the seeds `seed`, `seed` + 1 and so on. The first
    one is exported and promoted; the evaluation shows mean and spread of all."""
    precision: Literal["float32", "float64"] = "float32"
    """Floating point type of the network."""
    slowmo: SlowMoSettings | None = None
    """Slow momentum around the algorithm; null for none."""
    optimizer_state: StatePolicy | None = None
    """Treatment of momentum and moments, also of a method's own momentum, at exact averages and
    outer steps: `keep` or `reset`. Null: SlowMo resets those of `sgd`, but not at the server of
    `sharded`; all others are kept."""
    staleness_bound: int | None = Field(default=None, ge=0)
    """Number of steps that a worker may be ahead of the slowest one before it waits
    (stale-synchronous); 0: they step together. Null: no bound."""
    sharding: Literal["global", "static"] | None = None
    """How events come to workers: `global`: each draws the next work unit when it is ready, so
    nobody waits; `static`: equal shares per epoch. Null: global where workers do not wait for each
    other, such as `ad-psgd`."""
    skew: SkewSettings | None = None
    """Unequal data, for studies: every event belongs to one worker, all own the same number of
    events. Each worker then reads all row groups, to use its part. Null: all workers read the same
    mixture."""
    decorrelate: DecorrelateSettings | None = None
    """A term of the loss that makes the signal's score independent of columns within classes, such
    as `{from: [lepton_pt], strength: 10, classes: [QCD]}`; null for none. torch then computes the
    gradients."""
    reader: ReaderKind = "petastorm"
    """Reader of the features: `petastorm` reads the files in every epoch; the faster `arrow` reads
    them once, and the events stay in memory. Both give the same batches."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the network; `auto`: a GPU if there is one, but the CPU for perceptrons, which
    train faster there. Ranks of a machine take its GPUs in turn."""
    checkpoint_steps: int | None = Field(default=None, ge=1)
    """Number of steps of a worker between checkpoints within an epoch; null: only at the end of
    every epoch."""
    max_restarts: int = Field(default=3, ge=0)
    """How often all start again from the last checkpoint when a rank is lost; after one more loss
    the run stops."""
    stall_seconds: float = Field(default=300.0, gt=0)
    """Time without a step of any rank after which the run ends with a report of what each rank was
    doing [s]."""
    tensorboard: bool = False
    """Whether to also write scalars for TensorBoard (needs `pip install tensorboardX`)."""
    launcher: Literal["mpirun", "srun", "spark", "spark-agents"] = "mpirun"
    """What starts the workers: `mpirun`; `srun` in a SLURM allocation (with `--mpi=pmix`); `spark`:
    mpirun starts ranks inside the executors of the Spark cluster, without ssh; or `spark-agents`:
    Spark alone, without MPI (`mpca`)."""
    launcher_args: list[str] = Field(default=[])
    """Further arguments of the launcher, for example `[--hostfile, hosts.txt]` for mpirun."""

    @model_validator(mode="after")
    def _keys_suit_each_other(self) -> Self:
        """Refuse keys that contradict each other, with all contradictions in one message."""
        problems = [
            *self._problems_of_method(),
            *self._problems_of_launcher_args(),
            *self.schedule.problems(self.epochs),
        ]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _problems_of_method(self) -> Iterator[str]:
        """Yield a sentence for each contradiction between the method and other keys."""
        name, traits = self.algorithm.name, self.traits
        needs_one_worker = traits.single_worker and self.workers != 1
        if needs_one_worker:
            yield (
                f"algorithm {name} runs on one worker, not {self.workers}; use {_DEFAULT} or "
                f"another method for several"
            )
        # A method with a momentum of its own leaves one value only to some keys.
        required = [
            f"train.{key}={value}"
            for key, value in traits.required_values.items()
            if getattr(self, key) != value
        ]
        if required and not needs_one_worker:
            only_sgd = ", for plain SGD only" if traits.plain_sgd else ""
            yield f"algorithm {name} has its own momentum{only_sgd}; set {' and '.join(required)}"
        if self.launcher == "spark-agents" and not traits.joint_model:
            for_agents = [name for name, method in METHODS.items() if method.traits.joint_model]
            yield (
                f"launcher: spark-agents is for methods that add up models in the background, "
                f"unlike {name}. Use the algorithm {', '.join(for_agents)}, or the launcher spark"
            )
        if self.slowmo is not None and traits.joint_model:
            yield (
                f"slowmo does not go around {name}: its outer step changes the models of the "
                f"workers, which the joint model pulls back. Leave slowmo out, or use local-sgd, "
                f"which averages without a joint model"
            )
        if traits.server_optimizer and self.optimizer is OptimizerName.MUON:
            yield (
                f"optimizer: muon is not for {name}, whose shards cut the matrices. Use adam, "
                f"adamw or sgd, or a server to which workers push own steps, such as downpour"
            )
        if traits.server_optimizer and self.optimizer_state not in (None, StatePolicy.KEEP):
            yield (
                f"optimizer_state: {self.optimizer_state} is not for {name}, whose momentum and "
                f"moments are at the server and stay as they are; leave it out"
            )

    def _problems_of_launcher_args(self) -> Iterator[str]:
        """Yield a sentence for each argument that sets the number of ranks: `workers` does that."""
        options_of_ranks = {"-n", "-np", "-c", "--n", "--np", "--ntasks"}
        # For `srun`, `-c` is the number of cores of a rank.
        if self.launcher == "srun":
            options_of_ranks = {"-n", "--ntasks"}
        for argument in self.launcher_args:
            option, _, _ = argument.partition("=")
            if option in options_of_ranks:
                yield (
                    f"launcher_args: '{argument}' sets the number of ranks; set train.workers "
                    f"instead"
                )

    @property
    def workers_in_config(self) -> int | str:
        """The workers as the config states them: a number, or `auto`."""
        return AUTO if isinstance(self.workers, WorkersOfAllocation) else self.workers

    @property
    def counters(self) -> list[str]:
        """Names, in the records of a run, of the actions that these settings let it count."""
        names = [*self.algorithm.counters]
        if self.slowmo is not None:
            names.append("slowmo_steps")
        if self.staleness_bound is not None:
            names.append("bounded_steps")
        if self.decorrelate is not None:
            names.append("decorrelated_steps")
        if self.checkpoint_steps is not None:
            names.append("checkpoints")
        return names

    def check_one_worker(self) -> None:
        """Refuse one worker, or few, where a setting needs more: one has no launcher or restart.

        This is no part of the validation, since a config may leave their number to `--workers`.

        Raises:
            IdleSettingError: There is such a setting; the message names all.
        """
        default_restarts = type(self).model_fields["max_restarts"].default
        needs_several = {
            f"algorithm: {self.algorithm.name}": self.algorithm.traits.needs_others,
            f"staleness_bound: {self.staleness_bound}": self.staleness_bound is not None,
            "skew": self.skew is not None,
            f"launcher: {self.launcher}": self.launcher != "mpirun",
            "slowmo.exact_average: true": self.slowmo is not None and self.slowmo.exact_average,
            "launcher_args": bool(self.launcher_args),
            f"max_restarts: {self.max_restarts}": self.max_restarts != default_restarts,
        }
        fewest_workers = {setting: 2 for setting, needs in needs_several.items() if needs}
        fewest_workers |= self.algorithm.fewest_workers
        idle = {name: fewest for name, fewest in fewest_workers.items() if self.workers < fewest}
        if idle:
            names = ", ".join(f"train.{name}" for name in idle)
            raise IdleSettingError(
                f"{names} has no effect: it needs at least {max(idle.values())} workers, and "
                f"train.workers is {self.workers}. Raise that, or leave it out."
            )

    @property
    def traits(self) -> Traits:
        """The traits of the method, as SlowMo and the bound on staleness change them.

        Both make all workers take the same number of steps; SlowMo only if it averages exactly.
        """
        averages_exactly = self.slowmo is not None and self.slowmo_is_exact
        if averages_exactly or self.staleness_bound is not None:
            return replace(self.algorithm.traits, equal_steps=True)
        return self.algorithm.traits

    def result_items(self, *, exclude: Collection[str] = ()) -> dict[str, Any]:
        """Return the JSON values of the keys that can change the result, by key.

        Left out are the keys that change the speed only, and those of `exclude`.
        """
        excluded: dict[str, Any] = dict.fromkeys([*self.SPEED_ONLY, *exclude], True)
        excluded["algorithm"] = set(self.algorithm.SPEED_ONLY)
        return self.model_dump(mode="json", exclude=excluded)

    @property
    def has_static_shards(self) -> bool:
        """Whether an epoch's row groups are divided among the workers beforehand, in equal shares.

        Else each worker draws the next work unit, a few row groups, when it is ready.
        """
        return self.traits.equal_steps or self.sharding == "static"

    @property
    def effective_learning_rate(self) -> float:
        """The optimiser's learning rate: `learning_rate` times `rate_scale`."""
        return self.learning_rate * self.rate_scale

    @property
    def rate_scale(self) -> int:
        """Factor of the linear rule on the learning rate (Goyal et al. 2017).

        It is the number of workers where they share one step of SGD, and 1 where the rule does not
        apply.
        """
        has_linear_rule = self.traits.linear_rate and self.optimizer is OptimizerName.SGD
        if has_linear_rule and self.scale_learning_rate:
            return self.workers
        return 1

    @property
    def optimizer_has_state(self) -> bool:
        """Whether the base optimiser, or the method in its place, has momentum or moments."""
        is_plain = self.optimizer is OptimizerName.SGD and not self.momentum
        return not is_plain or self.traits.own_momentum

    @property
    def slowmo_is_exact(self) -> bool:
        """Whether SlowMo averages all workers; by default only around methods that do so too."""
        if self.slowmo is None or self.slowmo.exact_average is None:
            return self.algorithm.traits.exact_average
        return self.slowmo.exact_average

    @property
    def state_policy(self) -> StatePolicy:
        """Treatment of the optimiser's state at exact averages and outer steps.

        It is the key `optimizer_state`. Without it, SlowMo resets the state of SGD, unless that is
        at a server; all other states are kept.
        """
        if self.optimizer_state is not None:
            return self.optimizer_state
        has_slow_sgd = self.slowmo is not None and self.optimizer is OptimizerName.SGD
        if has_slow_sgd and not self.traits.server_optimizer:
            return StatePolicy.RESET
        return StatePolicy.KEEP
