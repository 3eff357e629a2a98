"""A method continues from its checkpoint with all that it knows, or is refused there by name."""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from dataclasses import dataclass
from enum import Enum, Flag, auto
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from simulated import PEER_METHODS as SETTINGS
from simulated import MemoryCheckpoints, models, run, toy_rows

from training.algorithms.base import ComputeGradient
from training.algorithms.gossip import GossipAlgorithm
from training.algorithms.registry import METHODS
from training.algorithms.stateful import Stateful
from training.errors import CheckpointError
from training.loop.worker_state import _convert

AFTER_FIVE_STEPS = (0, 5)


class LazyGossip(GossipAlgorithm):
    """AD-PSGD that averages in some of its steps only; nothing says what it has to remember."""

    def __init__(self, settings: Any, worker: Any) -> None:
        super().__init__(settings, worker)
        self.steps = 0
        self.rng = np.random.default_rng(worker.seed)
        self.recent: deque[int] = deque(maxlen=2)

    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        version = await self.read()
        partner = self.partners.next()
        self.steps += 1
        self.recent.append(int(self.rng.integers(3)))
        if partner is not None and (self.steps + sum(self.recent)) % 3 == 0:
            await self.shared.begin_average_with(partner)
        await self.own_step(compute_gradient, num_samples, version=version)


class HandleGossip(LazyGossip):
    """It holds something that changes and that no checkpoint can hold."""

    def __init__(self, settings: Any, worker: Any) -> None:
        super().__init__(settings, worker)
        self.log = Path("log").open
        self.handle = object()


def run_in_place_of_ad_psgd(
    kind_name: type[Any], monkeypatch: pytest.MonkeyPatch, **more: Any
) -> Any:
    monkeypatch.setitem(
        METHODS._entries, "ad-psgd", METHODS["ad-psgd"]._replace(algorithm=kind_name)
    )
    settings = {
        "workers": 3,
        "batch_size": 4,
        "checkpoint_steps": 5,
        "sharding": "static",
        "epochs": 1,
    }
    return run(**SETTINGS["ad-psgd"], **settings, train=toy_rows(120, groups=6), **more)


def test_an_own_method_continues_with_its_counters_and_random_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The counter of the tutorial's method began again at 0."""
    memory_checkpoints = MemoryCheckpoints()
    in_place_of_ad_psgd = run_in_place_of_ad_psgd(
        LazyGossip, monkeypatch, files=memory_checkpoints.files
    )

    resumed = run_in_place_of_ad_psgd(
        LazyGossip,
        monkeypatch,
        files=MemoryCheckpoints().files,
        resume=memory_checkpoints.at(AFTER_FIVE_STEPS),
    )

    np.testing.assert_array_equal(models(resumed), models(in_place_of_ad_psgd))


def test_an_attribute_that_no_checkpoint_can_hold_is_refused_at_the_first_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(
        CheckpointError,
        match=r"hold HandleGossip\.handle: .* type builtins\.object.* SCRATCH of Hand",
    ):
        run_in_place_of_ad_psgd(HandleGossip, monkeypatch, files=MemoryCheckpoints().files)


def test_an_attribute_named_as_scratch_is_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    named = type("Named", (HandleGossip,), {"SCRATCH": ("handle",)})
    memory_checkpoints = MemoryCheckpoints()
    run_in_place_of_ad_psgd(named, monkeypatch, files=memory_checkpoints.files)
    saved = memory_checkpoints.at(AFTER_FIVE_STEPS).load(0)["algorithm"]["attributes"]
    assert {"steps", "rng", "recent", "partners"} <= saved.keys()
    assert not {"handle", "log", "shared", "model", "_change"} & saved.keys()


class Everything(Stateful):
    """An attribute of each kind that can be saved."""

    def __init__(self, seed: int) -> None:
        numbers = np.arange(3) + seed
        self.number, self.text, self.nothing, self.is_set = (
            seed,
            f"text {seed}",
            None,
            bool(seed % 2),
        )
        self.array, self.scalar = numbers.astype(float), np.float64(seed)
        self.nested = {"a": [(seed, numbers.copy())], 3: "b"}
        self.counter, self.by_default = Counter("ab" * seed), defaultdict(int, {"c": seed})
        self.queue, self.members, self.frozen = deque([seed], maxlen=2), {seed}, frozenset({seed})
        self.generator, self.random = np.random.default_rng(seed), random.Random(seed)


class Phase(Enum):
    """What a method does at the time."""

    SEARCH = auto()
    AVERAGE = auto()


class Side(Flag):
    """Flags have numbers: their sums have no name."""

    LEFT = auto()
    RIGHT = auto()


def restored_from_file(saved: Stateful, restored: Stateful, folder: Path) -> None:
    """Continue with the attributes of another object, by way of a checkpoint's file."""
    torch.save(_convert(saved.state_dict(), np.ndarray, torch.from_numpy), folder / "state.pt")
    loaded = torch.load(folder / "state.pt", weights_only=True)
    restored.load_state_dict(_convert(loaded, torch.Tensor, torch.Tensor.numpy))


def test_every_kind_of_attribute_comes_back_in_its_type(tmp_path: Path) -> None:
    saved, restored = Everything(3), Everything(4)
    array, queue = restored.array, restored.queue

    restored_from_file(saved, restored, tmp_path)

    assert_same_attributes(saved, restored)
    assert restored.array is array
    assert restored.queue is queue


def test_attributes_that_are_first_made_in_a_step_come_back_in_their_types(tmp_path: Path) -> None:
    """Generators came back as dicts, queues as lists, and numbers of numpy as those of Python."""
    saved, restored = Everything(3), Stateful()

    restored_from_file(saved, restored, tmp_path)

    assert_same_attributes(saved, restored)


def assert_same_attributes(saved: Stateful, restored: Stateful) -> None:
    for name, value in vars(saved).items():
        actual = getattr(restored, name)
        assert type(actual) is type(value), name
        if name in ("generator", "random"):
            assert actual.random() == value.random()
        else:
            np.testing.assert_equal(actual, value, err_msg=name)
    assert vars(restored)["queue"].maxlen == 2
    assert vars(restored)["by_default"]["new"] == 0


class Named(Stateful):
    """Attributes by name."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def test_one_array_below_two_names_stays_one(tmp_path: Path) -> None:
    vector = np.arange(3.0)
    saved = Named(model=vector, by_name={"model": vector}, last=[vector])
    restored = Named(model=np.zeros(3), by_name={}, last=None)

    restored_from_file(saved, restored, tmp_path)

    actual = vars(restored)
    assert actual["by_name"]["model"] is actual["model"]
    assert actual["last"][0] is actual["model"]
    np.testing.assert_array_equal(actual["model"], vector)


def test_arrays_in_containers_stay_where_they_are(tmp_path: Path) -> None:
    position = np.zeros(3)
    restored = Named(vector=position, by_name={"vector": position}, recent=deque([position]))
    saved = Named(vector=np.ones(3), by_name={"vector": np.ones(3)}, recent=deque([np.ones(3)]))
    vars(saved)["by_name"]["vector"] = vars(saved)["recent"][0] = vars(saved)["vector"]

    restored_from_file(saved, restored, tmp_path)

    assert vars(restored)["by_name"]["vector"] is vars(restored)["recent"][0] is position
    np.testing.assert_array_equal(position, 1)


def test_two_arrays_that_began_as_one_come_back_as_two(tmp_path: Path) -> None:
    pair = np.zeros(2)
    restored = Named(now=pair, before=pair)

    restored_from_file(Named(now=np.full(2, 2.0), before=np.ones(2)), restored, tmp_path)

    np.testing.assert_array_equal(vars(restored)["now"], 2)
    np.testing.assert_array_equal(vars(restored)["before"], 1)


@pytest.mark.parametrize("phase", [Phase.AVERAGE, Side.LEFT | Side.RIGHT])
def test_a_member_of_an_enumeration_that_changed_comes_back(tmp_path: Path, phase: Enum) -> None:
    """It was taken as a constant, so that the method continued in its first phase."""
    restored = Named(phase=Phase.SEARCH)
    restored_from_file(Named(phase=phase), restored, tmp_path)
    assert vars(restored)["phase"] is phase


def add(first: int, second: int) -> int:
    return first + second


@dataclass(frozen=True)
class Frozen:
    """Frozen settings."""

    rate: float


@pytest.mark.parametrize(
    "kind_name",
    [add, partial(add, 1), Path("log").open, Frozen(0.1), Frozen],
    ids=["function", "partial", "bound method", "frozen object", "class"],
)
def test_what_cannot_be_saved_is_a_constant_as_long_as_it_stays(kind_name: Any) -> None:
    """It was left out after a change too, so that the method silently continued with the first one."""
    method = Named(rule=kind_name)
    method.note_constants()
    assert method.state_dict() == {}
    vars(method)["rule"] = Frozen(0.2)
    with pytest.raises(CheckpointError, match=r"hold Named\.rule: .*\.Frozen that no start made\."):
        method.state_dict()
    vars(method)["rule"], vars(method)["later"] = kind_name, kind_name
    with pytest.raises(CheckpointError, match=r"hold Named\.later: .* that no start made\."):
        method.state_dict()


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(2, np.longdouble),
        np.zeros(2, ">f8"),
        np.longdouble(1),
        np.ma.masked_array([1.0, 2.0], [True, False]),
        defaultdict(lambda: 1),
        {"pairs": [(object(),)]},
        Counter,
    ],
    ids=[
        "longdouble",
        "byte order",
        "longdouble number",
        "masked",
        "defaultdict of lambda",
        "object",
        "new class",
    ],
)
def test_what_cannot_be_made_again_is_refused_at_the_first_checkpoint(value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"no checkpoint can hold Named\.value: "):
        Named(value=value).state_dict()


class Phases(LazyGossip):
    """Its phase, its rule and its own momentum change in its steps."""

    def __init__(self, settings: Any, worker: Any) -> None:
        super().__init__(settings, worker)
        self.phase, self.rule = Phase.SEARCH, add
        self.momenta = (self.model.empty(),)
        self.momenta[0].fill(0)

    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        await super().step(compute_gradient, num_samples)
        self.phase = Phase.AVERAGE
        self.momenta[0][:] += self.rule(1, 2)


def test_enumerations_and_momenta_are_in_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    memory_checkpoints = MemoryCheckpoints()
    run_in_place_of_ad_psgd(Phases, monkeypatch, files=memory_checkpoints.files)
    saved = memory_checkpoints.at(AFTER_FIVE_STEPS).load(0)["algorithm"]["attributes"]
    restored = Named(momenta=())
    changed = {name: saved[name] for name in ("phase", "momenta")}
    restored.load_state_dict(_convert(changed, torch.Tensor, torch.Tensor.numpy))
    assert vars(restored)["phase"] is Phase.AVERAGE
    np.testing.assert_array_equal(vars(restored)["momenta"][0], 15)


class ChangingRule(Phases):
    """It replaces a function, which no checkpoint can hold."""

    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        await super().step(compute_gradient, num_samples)
        self.rule = max


def test_a_function_that_a_step_replaces_is_refused_at_the_first_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(CheckpointError, match=r"hold ChangingRule\.rule: .* that no start made"):
        run_in_place_of_ad_psgd(ChangingRule, monkeypatch, files=MemoryCheckpoints().files)
