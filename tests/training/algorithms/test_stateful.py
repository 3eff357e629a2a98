"""A method continues from its checkpoint with all attributes, or the checkpoint names the bad
one."""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass
from enum import Enum, Flag, auto
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from simulated import PEER_METHODS, MemoryCheckpoints, models, run, toy_rows

from training.algorithms.base import ComputeGradient
from training.algorithms.gossip import GossipAlgorithm
from training.algorithms.registry import METHODS
from training.algorithms.stateful import Stateful
from training.errors import CheckpointError
from training.loop.worker_state import _convert

AFTER_FIVE_STEPS = (0, 5)


class Phase(Enum):
    """What a method does at the time."""

    SEARCH = auto()
    AVERAGE = auto()


class Side(Flag):
    """Flags whose sums have no name."""

    LEFT = auto()
    RIGHT = auto()


def add(first: int, second: int) -> int:
    return first + second


class LazyGossip(GossipAlgorithm):
    """AD-PSGD that averages in some of its steps only; its attributes change in its steps."""

    def __init__(self, settings: Any, worker: Any) -> None:
        super().__init__(settings, worker)
        self.steps = 0
        self.rng = np.random.default_rng(worker.seed)
        self.recent: deque[int] = deque(maxlen=2)
        self.phase = Phase.SEARCH
        self.rule: Any = add
        self.momenta = (np.zeros_like(self.model.empty()),)

    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        version = await self.read()
        partner = self.partners.next()
        self.steps = self.rule(self.steps, 1)
        self.recent.append(int(self.rng.integers(3)))
        if partner is not None and (self.steps + sum(self.recent)) % 3 == 0:
            await self.shared.begin_average_with(partner)
        await self.own_step(compute_gradient, num_samples, version=version)
        self.phase = Phase.AVERAGE
        self.momenta[0][:] += 3


class HandleGossip(LazyGossip):
    """It has an attribute that no checkpoint can hold."""

    def __init__(self, settings: Any, worker: Any) -> None:
        super().__init__(settings, worker)
        self.log = Path("log").open
        self.handle = object()


class ScratchGossip(HandleGossip):
    """It names that attribute as scratch."""

    SCRATCH = ("handle",)


class ChangingRule(LazyGossip):
    """It replaces a function, which no checkpoint can hold."""

    async def step(self, compute_gradient: ComputeGradient, num_samples: int) -> None:
        await super().step(compute_gradient, num_samples)
        self.rule = max


def run_as_ad_psgd(algorithm: type[Any], monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
    """Run an algorithm in place of AD-PSGD, with a checkpoint after five steps."""
    method = METHODS["ad-psgd"]._replace(algorithm=algorithm)
    monkeypatch.setitem(METHODS._entries, "ad-psgd", method)
    settings = {"workers": 3, "batch_size": 4, "checkpoint_steps": 5, "epochs": 1}
    return run(
        **PEER_METHODS["ad-psgd"],
        **settings,
        sharding="static",
        train=toy_rows(120, groups=6),
        **options,
    )


def test_a_method_continues_with_its_counters_and_random_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkpoints = MemoryCheckpoints()
    complete = run_as_ad_psgd(LazyGossip, monkeypatch, files=checkpoints.files)

    resumed = run_as_ad_psgd(
        LazyGossip,
        monkeypatch,
        files=MemoryCheckpoints().files,
        resume=checkpoints.at(AFTER_FIVE_STEPS),
    )

    np.testing.assert_array_equal(models(resumed), models(complete))


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (HandleGossip, r"hold HandleGossip\.handle: .* type builtins\.object.* SCRATCH of Hand"),
        (ChangingRule, r"hold ChangingRule\.rule: .* that no start made"),
    ],
)
def test_an_attribute_that_no_checkpoint_can_hold_is_refused_at_the_first_one(
    algorithm: type[Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CheckpointError, match=message):
        run_as_ad_psgd(algorithm, monkeypatch, files=MemoryCheckpoints().files)


def test_a_checkpoint_has_all_attributes_but_scratch_and_constants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkpoints = MemoryCheckpoints()

    run_as_ad_psgd(ScratchGossip, monkeypatch, files=checkpoints.files)

    saved = checkpoints.at(AFTER_FIVE_STEPS).load(0)["algorithm"]["attributes"]
    assert {"steps", "rng", "recent", "partners", "phase", "momenta"} <= saved.keys()
    assert not {"handle", "log", "rule", "shared", "model", "_change"} & saved.keys()
    restored = Named(momenta=())
    changed = {name: saved[name] for name in ("phase", "momenta")}
    restored.load_state_dict(_convert(changed, torch.Tensor, torch.Tensor.numpy))
    assert vars(restored)["phase"] is Phase.AVERAGE
    np.testing.assert_array_equal(vars(restored)["momenta"][0], 15)


class Named(Stateful):
    """An object with attributes by name."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def every_kind_of_attribute(seed: int) -> dict[str, Any]:
    integers = np.arange(3) + seed
    return {
        "integer": seed,
        "text": f"text {seed}",
        "nothing": None,
        "truth": bool(seed % 2),
        "array": integers.astype(float),
        "scalar": np.float64(seed),
        "nested": {"a": [(seed, integers.copy())], 3: "b"},
        "counter": Counter("ab" * seed),
        "queue": deque([seed], maxlen=2),
        "set": {seed},
        "frozen_set": frozenset({seed}),
        "enum": Phase(1 + seed % 2),
        "flags": Side.LEFT | Side(seed % 2),
        "generator": np.random.default_rng(seed),
        "random": random.Random(seed),
    }


def restore_from_file(saved: Stateful, restored: Stateful, folder: Path) -> None:
    """Continue with the attributes of another object, by way of a checkpoint's file."""
    state = _convert(saved.state_dict(), np.ndarray, torch.from_numpy)
    torch.save(state, folder / "state.pt")
    loaded = torch.load(folder / "state.pt", weights_only=True)
    restored.load_state_dict(_convert(loaded, torch.Tensor, torch.Tensor.numpy))


@pytest.mark.parametrize("is_made_by_start", [True, False])
def test_every_kind_of_attribute_comes_back_in_its_type(
    tmp_path: Path, is_made_by_start: bool
) -> None:
    saved = Named(**every_kind_of_attribute(3))
    present = every_kind_of_attribute(4) if is_made_by_start else {}
    restored = Named(**present)

    restore_from_file(saved, restored, tmp_path)

    for name, expected in vars(saved).items():
        value = vars(restored)[name]
        assert type(value) is type(expected), name
        if name in ("generator", "random"):
            assert value.random() == expected.random()
        else:
            np.testing.assert_equal(value, expected, err_msg=name)
    assert vars(restored)["queue"].maxlen == 2
    if is_made_by_start:
        assert vars(restored)["array"] is present["array"]
        assert vars(restored)["queue"] is present["queue"]


def test_one_array_below_two_names_stays_one(tmp_path: Path) -> None:
    vector = np.arange(3.0)
    saved = Named(model=vector, by_name={"model": vector}, last=[vector])
    restored = Named(model=np.zeros(3), by_name={}, last=None)

    restore_from_file(saved, restored, tmp_path)

    attributes = vars(restored)
    assert attributes["by_name"]["model"] is attributes["model"]
    assert attributes["last"][0] is attributes["model"]
    np.testing.assert_array_equal(attributes["model"], vector)


def test_arrays_in_containers_stay_where_they_are(tmp_path: Path) -> None:
    present = np.zeros(3)
    vector = np.ones(3)
    restored = Named(vector=present, by_name={"vector": present}, recent=deque([present]))
    saved = Named(vector=vector, by_name={"vector": vector}, recent=deque([vector]))

    restore_from_file(saved, restored, tmp_path)

    attributes = vars(restored)
    assert attributes["by_name"]["vector"] is present
    assert attributes["recent"][0] is present
    np.testing.assert_array_equal(present, 1)


def test_two_arrays_that_began_as_one_come_back_as_two(tmp_path: Path) -> None:
    shared = np.zeros(2)
    restored = Named(first=shared, second=shared)
    saved = Named(first=np.full(2, 2.0), second=np.ones(2))

    restore_from_file(saved, restored, tmp_path)

    np.testing.assert_array_equal(vars(restored)["first"], 2)
    np.testing.assert_array_equal(vars(restored)["second"], 1)


@dataclass(frozen=True)
class Frozen:
    """Frozen settings."""

    rate: float


@pytest.mark.parametrize(
    "constant",
    [add, partial(add, 1), Path("log").open, Frozen(0.1), Frozen],
    ids=["function", "partial", "bound method", "frozen object", "class"],
)
def test_a_constant_is_not_saved_unless_it_changes(constant: Any) -> None:
    method = Named(rule=constant)
    method.note_constants()

    assert method.state_dict() == {}

    vars(method)["rule"] = Frozen(0.2)
    with pytest.raises(CheckpointError, match=r"hold Named\.rule: .*\.Frozen that no start made\."):
        method.state_dict()
    vars(method)["rule"] = vars(method)["later"] = constant
    with pytest.raises(CheckpointError, match=r"hold Named\.later: .* that no start made\."):
        method.state_dict()


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(2, np.longdouble),
        np.zeros(2, ">f8"),
        np.longdouble(1),
        np.ma.masked_array([1.0, 2.0], [True, False]),
        {"pairs": [(object(),)]},
        Counter,
    ],
    ids=["longdouble", "byte order", "longdouble number", "masked", "object", "new class"],
)
def test_a_value_that_cannot_be_made_again_is_refused(value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"no checkpoint can hold Named\.value: "):
        Named(value=value).state_dict()
