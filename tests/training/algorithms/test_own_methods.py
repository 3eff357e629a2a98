"""Mistakes in methods that users add: each is named, and none changes numbers without a word."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Literal, get_args

import numpy as np
import pytest
from pydantic import BaseModel
from simulated import models, run

from training.algorithms.base import Algorithm, ComputeGradient, Counters
from training.algorithms.gossip import GossipAlgorithm, GossipSettings
from training.algorithms.method import METHODS, MethodSettings, Traits, algorithm
from training.algorithms.server import (
    ServerAlgorithm,
    ServerSettings,
    WindowAlgorithm,
    WindowSettings,
    server_traits,
)
from training.errors import TrainingError
from training.transports.basics import Vector
from training.transports.pushes import Shard


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods that a test adds are gone after it."""
    monkeypatch.setattr(METHODS, "_entries", dict(METHODS))


class OwnSettings(MethodSettings):
    """Settings of a method of a user."""

    name: Literal["own"]


class OwnGossipSettings(GossipSettings):
    """Settings of a method of a user with random pairs."""

    name: Literal["own-gossip"]


class OwnServerSettings(ServerSettings):
    """Settings of a method of a user with a server."""

    name: Literal["own-server"]


class OwnWindowSettings(WindowSettings):
    """Settings of a method of a user with windows of steps."""

    name: Literal["own-window"]


class LocalSteps(Algorithm):
    """Workers that never exchange anything."""

    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        if await self.has_gradient(compute_gradient, num_samples):
            self.optimizer.step()


def run_method(algorithm_class: type[Any], *, epochs: int = 2, **traits: Any) -> Any:
    """Register a class as a method, and train with it in the simulator."""
    algorithm("own", OwnSettings, Traits(title="own", **traits))(algorithm_class)
    return run(algorithm="own", workers=2, epochs=epochs)


def test_a_method_that_does_not_write_the_model_of_the_run_is_refused() -> None:
    class Rebinds(LocalSteps):
        async def result(self, out: Vector) -> None:
            out = np.zeros_like(out)

    with pytest.raises(TrainingError, match=r"Rebinds\.result .*`out\[:\] = \.\.\.`"):
        run_method(Rebinds)


def test_a_method_that_forgets_to_await_is_refused() -> None:
    class Forgets(LocalSteps):
        async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
            if self.has_gradient(compute_gradient, num_samples):  # type: ignore[truthy-bool]
                self.optimizer.step()

    with (
        pytest.warns(RuntimeWarning, match="was never awaited"),
        pytest.raises(TrainingError, match=r"has_gradient.*test_own_methods\.py.*`await`"),
    ):
        run_method(Forgets)


@pytest.mark.parametrize("call", ["flush", "result", "quiesce", "close"])
def test_an_await_that_is_missing_at_the_end_of_the_run_is_named(call: str) -> None:
    class Forgets(LocalSteps):
        pass

    async def forget(method: Forgets, *vectors: Vector) -> None:
        method.transport.barrier()  # type: ignore[unused-coroutine]
        await getattr(LocalSteps, call)(method, *vectors)

    setattr(Forgets, call, forget)

    with (
        pytest.warns(RuntimeWarning, match="was never awaited"),
        pytest.raises(TrainingError, match=r"barrier.*test_own_methods\.py.*`await`"),
    ):
        run_method(Forgets, epochs=1)


@pytest.mark.parametrize("size", [1, 52])
@pytest.mark.parametrize("call", ["read", "write", "read_gradient", "write_gradient"])
def test_a_vector_of_another_size_than_the_model_is_refused(call: str, size: int) -> None:
    class Resizes(LocalSteps):
        async def step(self, compute_gradient: ComputeGradient, _: int) -> None:
            await compute_gradient()
            getattr(self.model, call)(np.zeros(size))

    with pytest.raises(TrainingError, match=rf"\({size},\).*51 parameters.*`model\.empty\(\)`"):
        run_method(Resizes)


def test_a_method_that_skips_the_init_of_its_base_is_named() -> None:
    class Skips(LocalSteps):
        def __init__(self, _: MethodSettings, worker: Any) -> None:
            self.model = worker.model

    with pytest.raises(TrainingError, match=r"Skips\.__init__.*super\(\)\.__init__"):
        run_method(Skips)


def test_a_method_without_a_snapshot_must_be_synchronous() -> None:
    with pytest.raises(TrainingError, match=r"LocalSteps.*snapshot.*synchronous=True"):
        run_method(LocalSteps, synchronous=False, equal_steps=False)


@pytest.mark.parametrize(
    ("traits", "message"),
    [
        ({"synchronous": True, "equal_steps": False}, "equal_steps=False needs synchronous=False"),
        ({"averages_models": True}, "averages_models=True needs exact_average=True"),
    ],
)
def test_traits_that_contradict_each_other_are_refused(
    traits: dict[str, bool], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        algorithm("own", OwnSettings, Traits(title="own", **traits))(LocalSteps)


def test_a_method_without_a_coroutine_step_is_refused() -> None:
    class Lacks(Algorithm):
        pass

    class Plain(Algorithm):
        def step(self, *_: Any) -> Awaitable[None]:  # type: ignore[override]
            raise AssertionError

    register = algorithm("own", OwnSettings, Traits(title="own"))
    with pytest.raises(ValueError, match="Lacks lacks step"):
        register(Lacks)
    with pytest.raises(ValueError, match=r"Plain\.step .* `async def step`"):
        register(Plain)
    assert "own" not in METHODS


def test_settings_of_another_base_are_refused() -> None:
    class Other(BaseModel):
        name: Literal["own"]

    other: Any = Other
    with pytest.raises(TypeError, match="Other must be a subclass of MethodSettings"):
        algorithm("own", other, Traits(title="own"))


def test_counters_may_come_later_and_be_numbers_of_numpy() -> None:
    class Counts(LocalSteps):
        async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
            await super().step(compute_gradient, num_samples)
            self.actions["undeclared"] += 1

        def counters(self) -> Counters:
            self.num_reads = getattr(self, "num_reads", 0) + 1
            self.returned = {
                **super().counters(),
                "of_numpy": np.int64(3),
                "histogram": Counter({np.int64(7): np.int64(self.num_reads)}),
            }
            self.returned_before = dict(self.returned)
            return self.returned

        async def close(self) -> None:
            assert self.returned == self.returned_before
            assert isinstance(self.returned["of_numpy"], np.int64), "the method's own stays"

    simulated = run_method(Counts)

    record = json.loads(json.dumps(simulated.records[0][0]))
    assert record["undeclared"] == record["steps"] > 0
    assert record["of_numpy"] == 0
    assert record["histogram"] == {"7": 1}


def test_a_counter_that_is_no_number_is_named() -> None:
    class Counts(LocalSteps):
        def counters(self) -> Counters:
            return {**super().counters(), "odd": np.zeros(2)}

    with pytest.raises(TrainingError, match=r"Counts\.counters.*'odd'.*ndarray"):
        run_method(Counts)


def server_method(rule_of: Callable[[Vector], Callable[[Shard], None]]) -> type[ServerAlgorithm]:
    """A method whose workers push each step by a rule."""

    class OwnServer(ServerAlgorithm):
        async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
            if await self.has_gradient(compute_gradient, num_samples):
                self.optimizer.step()
                await self.push(rule_of(self._unsent_change()))
                self.model.write(self.pulled)

    return OwnServer


def run_server(algorithm_class: type[Any], settings: type[ServerSettings]) -> Any:
    (name,) = get_args(settings.model_fields["name"].annotation)
    algorithm(name, settings, server_traits("own"))(algorithm_class)
    return run(algorithm=name, workers=2)


def test_a_rule_may_replace_the_vector_of_a_shard() -> None:
    def in_place(change: Vector) -> Callable[[Shard], None]:
        def rule(shard: Shard) -> None:
            shard.vector += change[shard.elements]

        return rule

    def replacing(change: Vector) -> Callable[[Shard], None]:
        def rule(shard: Shard) -> None:
            shard.vector = shard.vector + change[shard.elements]

        return rule

    expected = models(run_server(server_method(in_place), OwnServerSettings))
    del METHODS._entries["own-server"]
    actual = models(run_server(server_method(replacing), OwnServerSettings))

    np.testing.assert_array_equal(actual, expected)


def test_a_rule_that_replaces_the_vector_by_another_shape_is_named() -> None:
    def replacing(_: Vector) -> Callable[[Shard], None]:
        def rule(shard: Shard) -> None:
            shard.vector = np.zeros(1)

        return rule

    with pytest.raises(TrainingError, match=r"shard 0 .*\(51,\).*\(1,\)"):
        run_server(server_method(replacing), OwnServerSettings)


@pytest.mark.parametrize("update", [None, 1.0, np.zeros(52)])
def test_an_update_of_a_server_of_another_shape_is_named(update: Any) -> None:
    class OwnWindow(WindowAlgorithm):
        def server_update(self, change: Vector, shard: Shard) -> Vector:  # noqa: ARG002
            result: Vector = update
            return result

    with pytest.raises(TrainingError, match=r"OwnWindow\.server_update.*\(51,\)"):
        run_server(OwnWindow, OwnWindowSettings)


@pytest.mark.parametrize("partner", [-1, 2])
@pytest.mark.parametrize("call", ["average_with", "begin_average_with", "read_from_rank"])
def test_a_partner_that_is_no_rank_is_named(call: str, partner: int) -> None:
    class OwnGossip(GossipAlgorithm):
        async def step(self, *_: Any) -> None:
            await self.read()
            out = [self.model.empty()] if call == "read_from_rank" else []
            await getattr(self.shared, call)(partner, *out)

    traits = Traits(title="own", synchronous=False, equal_steps=False, pairs=True)
    algorithm("own-gossip", OwnGossipSettings, traits)(OwnGossip)
    with pytest.raises(TrainingError, match=rf"there is no rank {partner}.* 0 to 1"):
        run(algorithm="own-gossip", workers=2)


def test_a_step_with_a_plain_decorator_is_a_coroutine() -> None:
    calls: list[str] = []

    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            calls.append(function.__name__)
            return function(*arguments)

        return call

    class Decorated(LocalSteps):
        step = logged(LocalSteps.step)

    run_method(Decorated)

    assert "step" in calls


@pytest.mark.parametrize(
    ("vector", "message"),
    [
        ([1.0, 2.0], "list"),
        (np.zeros(4)[::2], "not contiguous in the order of C"),
        (np.zeros((2, 3)).T, "not contiguous in the order of C, such as a transposed matrix"),
        (np.zeros(2, np.bool_), "bool"),
        (np.zeros(2, ">f8"), ">f8"),
        (np.zeros(2, object), "object"),
    ],
)
def test_an_all_reduce_of_what_mpi_cannot_add_up_is_named(vector: Any, message: str) -> None:
    class Sums(LocalSteps):
        async def step(self, *_: Any) -> None:
            await self.transport.all_reduce_sum(vector)

    with pytest.raises(TrainingError, match=rf"all-reduce.*{message}"):
        run_method(Sums)
