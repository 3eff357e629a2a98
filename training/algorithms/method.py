"""What the file of a method declares: settings, traits and name. No torch, so that the config is read without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, TypeVar, get_args

from typing_extensions import override

from hep_core.settings_section import SettingsSection

A = TypeVar("A", bound=type[Any])


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What other code asks about a method instead of its name."""

    title: str = ""
    """Name in tables and figures."""
    synchronous: bool = True
    """Whether all workers take each step together, so that the run does not depend on timing."""
    equal_steps: bool = True
    """Whether all workers must take the same number of steps, since they meet now and then."""
    single_worker: bool = False
    """Whether it runs on one worker only."""
    pairs: bool = False
    """Whether random pairs of workers average their shared vectors."""
    server: bool = False
    """Whether the workers share a server, which is the model."""
    exact_average: bool = False
    """Whether it averages all workers exactly, gradients or models; SlowMo then does so too."""
    averages_models: bool = False
    """Whether these exact averages are of models, so that the optimiser's state needs a policy."""
    linear_rate: bool = False
    """Whether the workers share one step of the optimiser: batches add up, and the linear rule holds for SGD."""
    own_momentum: bool = False
    """Whether it has a momentum of its own, in place of `train.momentum`."""
    server_optimizer: bool = False
    """Whether the steps of the base optimiser are at the server, and so its momentum and moments, which stay there."""
    plain_sgd: bool = False
    """Whether it is for steps of SGD only."""
    needs_others: bool = False
    """Whether one worker alone trains as with plain SGD: the method is what several do together."""
    joint_model: bool = False
    """Whether the model is a joint one that pulls the workers: for agents of Spark too, and not within SlowMo."""

    @property
    def needed(self) -> dict[str, str | int]:
        """Keys of `train` that have one value only with this method.

        Examples:
            >>> Traits(plain_sgd=True).needed, Traits(single_worker=True).needed
            ({'optimizer': 'sgd', 'momentum': 0}, {'workers': 1})
        """
        found: dict[str, str | int] = {"optimizer": "sgd"} if self.plain_sgd else {}
        if self.plain_sgd or self.own_momentum:
            found["momentum"] = 0
        if self.single_worker:
            found["workers"] = 1
        return found


class TransportOptions(NamedTuple):
    """How the transport connects the vectors that workers share."""

    background: bool = False
    """Whether a thread communicates with other workers during the computation."""
    network: str | None = None


class MethodSettings(SettingsSection):
    """Settings of a method; the fields are the keys of `train.algorithm`."""

    #: What the method does now and then, whatever its settings.
    COUNTERS: ClassVar[tuple[str, ...]] = ()
    #: Keys that change the speed but not the result: they never make a stage stale.
    SPEED_ONLY: ClassVar[frozenset[str]] = frozenset()

    name: str
    """Name of the method."""

    @property
    def traits(self) -> Traits:
        """The traits of the method."""
        return METHODS[self.name].traits

    @property
    def steps_apart(self) -> int:
        """Number of steps from one average to the next: the key `local_steps` of the methods that have one."""
        return getattr(self, "local_steps", 1)

    @property
    def counters(self) -> tuple[str, ...]:
        """Names in `Algorithm.counters` of what the method does now and then with these settings."""
        return self.COUNTERS

    @property
    def transport_options(self) -> TransportOptions:
        """How the transport connects shared vectors."""
        return TransportOptions()


class HostNetworkSettings(MethodSettings):
    """Settings of a method whose workers use memory of each other."""

    SPEED_ONLY: ClassVar[frozenset[str]] = frozenset({"network"})

    network: str | None = None
    """Network between hosts, as `10.0.0.0/24` or an interface such as `ib0`; null: the first that connects all."""

    @property
    @override
    def transport_options(self) -> TransportOptions:
        return TransportOptions(network=self.network)


class Method(NamedTuple):
    """A registered method."""

    settings: type[MethodSettings]
    traits: Traits
    kind: type[Any]
    """The `Algorithm`; it takes settings and a `Worker`."""


#: The registered methods by name; `training.algorithms.registry` fills it.
METHODS: Final[dict[str, Method]] = {}


def algorithm(name: str, settings: type[MethodSettings], traits: Traits) -> Callable[[A], A]:
    """Register a class as the method of this name, with settings that have the field `name: Literal[name]`."""
    if get_args(settings.model_fields["name"].annotation) != (name,):
        raise ValueError(f"{settings.__name__} needs the field `name: Literal[{name!r}]`.")

    def register(kind: A) -> A:
        if name in METHODS:
            raise ValueError(
                f"there are two methods '{name}': {METHODS[name].kind} and {kind}. Rename one of them."
            )
        kind.traits = traits
        METHODS[name] = Method(settings, traits, kind)
        return kind

    return register
