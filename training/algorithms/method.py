"""The declarations in a method's file: name, settings and traits.

It imports no torch, since the config reads them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple, TypeVar, get_args

from pydantic import BaseModel
from typing_extensions import override

from hep_core.registry import PluginRegistry
from hep_core.settings_section import SettingsSection, value_in_yaml

A = TypeVar("A", bound=type[Any])


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Properties of a method; other code asks for these instead of its name."""

    title: str = ""
    """Name in tables and figures."""
    synchronous: bool = True
    """Whether all workers take each step together, so that the run does not depend on timing."""
    equal_steps: bool = True
    """Whether all workers must take the same number of steps, since they synchronise now and
    then."""
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
    """Whether the workers share one step of the optimiser: batches add up, and the linear rule
    holds for SGD."""
    own_momentum: bool = False
    """Whether it has a momentum of its own, in place of `train.momentum`."""
    server_optimizer: bool = False
    """Whether the base optimiser makes its steps at the server, where its momentum and moments
    stay."""
    plain_sgd: bool = False
    """Whether it is for steps of SGD only."""
    needs_others: bool = False
    """Whether one worker alone trains as with plain SGD: the method is what several do together."""
    joint_model: bool = False
    """Whether a joint model pulls the workers: it also trains by agents of Spark, and not within
    SlowMo."""

    @property
    def required_values(self) -> dict[str, str | int]:
        """Return the keys of `train` that have one value only with this method.

        Examples:
            >>> Traits(plain_sgd=True).required_values, Traits(single_worker=True).required_values
            ({'optimizer': 'sgd', 'momentum': 0}, {'workers': 1})
        """
        required: dict[str, str | int] = {}
        if self.plain_sgd:
            required["optimizer"] = "sgd"
        if self.plain_sgd or self.own_momentum:
            required["momentum"] = 0
        if self.single_worker:
            required["workers"] = 1
        return required


class TransportOptions(NamedTuple):
    """What a method asks of the transport between its workers."""

    background: bool = False
    """Whether a thread communicates with other workers during the computation."""
    network: str | None = None
    """Network between hosts, as a range of addresses or an interface; None: the first that connects
    all."""


class MethodSettings(SettingsSection):
    """Settings of a method; the fields are the keys of `train.algorithm`."""

    #: Names of the actions that the method counts, whatever its settings.
    COUNTERS: ClassVar[tuple[str, ...]] = ()
    #: Keys that act only between several workers, and keep their default for one.
    BETWEEN_WORKERS: ClassVar[tuple[str, ...]] = ()
    #: Keys that change the speed but not the result: they never make a stage stale.
    SPEED_ONLY: ClassVar[frozenset[str]] = frozenset()

    name: str
    """Name of the method."""

    @classmethod
    @override
    def variants(cls) -> list[type[BaseModel]]:
        """Return the settings of all methods where any of them may stand."""
        if cls is not MethodSettings:
            return [cls]
        return [method.settings for method in METHODS.values()]

    @property
    def traits(self) -> Traits:
        """The traits of the method; some methods change them by their settings."""
        return METHODS[self.name].traits

    @property
    def algorithm_class(self) -> type[Any]:
        """The class of the `Algorithm`; some methods have another one by their settings."""
        return METHODS[self.name].algorithm

    @property
    def steps_between_averages(self) -> int:
        """Number of steps from one average to the next: the key `local_steps`, else 1."""
        return getattr(self, "local_steps", 1)

    @property
    def fewest_workers(self) -> Mapping[str, int]:
        """Numbers of workers below which settings have no effect, by `algorithm.key: value`."""
        fewest_workers = {}
        for key in self.BETWEEN_WORKERS:
            value = getattr(self, key)
            if value != type(self).model_fields[key].default:
                fewest_workers[f"algorithm.{key}: {value_in_yaml(value)}"] = 2
        return fewest_workers

    @property
    def fewest_parameters(self) -> Mapping[str, int]:
        """Numbers of parameters of a network below which settings do not suit it, named alike."""
        return {}

    def smallest_message(self, workers: int) -> float:  # noqa: ARG002 - methods differ
        """Return the size of the smallest message with parameters, as a fraction of all of them.

        A study of times replaces the network by a small one, whose messages keep this fraction.
        """
        return 1.0

    @property
    def counters(self) -> tuple[str, ...]:
        """Names in `Algorithm.counters` of the actions that these settings let the method count."""
        return self.COUNTERS

    @property
    def transport_options(self) -> TransportOptions:
        """Options of the transport."""
        return TransportOptions()


class HostNetworkSettings(MethodSettings):
    """Settings of a method whose workers read and change vectors of each other."""

    SPEED_ONLY: ClassVar[frozenset[str]] = frozenset({"network"})

    network: str | None = None
    """Network between hosts, as `10.0.0.0/24` or an interface such as `ib0`; null: the first that
    connects all."""

    @property
    @override
    def transport_options(self) -> TransportOptions:
        return TransportOptions(network=self.network)


class Method(NamedTuple):
    """A registered method."""

    settings: type[MethodSettings]
    """The class of its keys in a config."""
    traits: Traits
    """Its properties, where no settings change them."""
    algorithm: type[Any]
    """The class of the `Algorithm`; it takes settings and a `Worker`."""

    def __str__(self) -> str:
        return str(self.algorithm)


#: The methods; an import of `training.algorithms.registry` adds those of the package.
METHODS: Final = PluginRegistry[Method]("method")


def algorithm(name: str, settings: type[MethodSettings], traits: Traits) -> Callable[[A], A]:
    """Return a decorator that registers a class as the method of this name.

    The decorator also sets the class attribute `traits`. The settings must have the field
    `name: Literal[name]`, by which a config selects the method.

    Raises:
        TypeError: The settings are of another base.
        ValueError: The settings lack this field, the traits contradict each other, or the class
            lacks a coroutine `step`.
    """
    if not issubclass(settings, MethodSettings):
        raise TypeError(f"{settings.__name__} must be a subclass of MethodSettings.")
    # The arguments of `Literal[name]` are the values that it allows.
    if get_args(settings.model_fields["name"].annotation) != (name,):
        raise ValueError(f"{settings.__name__} needs the field `name: Literal[{name!r}]`.")
    if traits.synchronous and not traits.equal_steps:
        raise ValueError(
            f"the traits of '{name}' contradict each other: equal_steps=False needs "
            f"synchronous=False, since workers that take each step together take equally many."
        )
    if traits.averages_models and not traits.exact_average:
        raise ValueError(
            f"the traits of '{name}' contradict each other: averages_models=True needs "
            f"exact_average=True, since it says what is averaged exactly."
        )

    def register(algorithm_class: A) -> A:
        _require_step(name, algorithm_class)
        METHODS.register(name, Method(settings, traits, algorithm_class))
        algorithm_class.traits = traits
        return algorithm_class

    return register


def _require_step(name: str, algorithm_class: type[Any]) -> None:
    """Raise ValueError unless a class can be made, and has a coroutine `step`."""
    class_name = algorithm_class.__name__
    missing = sorted(getattr(algorithm_class, "__abstractmethods__", ()))
    step: Any = getattr(algorithm_class, "step", None)
    if step is None:
        missing = ["step"]
    if missing:
        raise ValueError(
            f"the method '{name}' is incomplete: {class_name} lacks {', '.join(missing)}."
        )
    # A plain decorator with `functools.wraps` hides a coroutine, and still returns its awaitable.
    if not any(inspect.iscoroutinefunction(function) for function in (step, inspect.unwrap(step))):
        raise ValueError(
            f"{class_name}.step of the method '{name}' is no coroutine: write `async def step`."
        )
