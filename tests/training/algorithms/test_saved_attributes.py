"""A method continues from its checkpoint with all that it knows, or is refused there by name."""

from __future__ import annotations

import random
from collections import Counter, defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from simulated import METHODS as SETTINGS
from simulated import KeptCheckpoints, models, run, toy_rows

from training.algorithms.base import ComputeGradient
from training.algorithms.gossip import GossipAlgorithm
from training.algorithms.registry import METHODS
from training.algorithms.saved_attributes import SavedAttributes
from training.errors import CheckpointError
from training.loop.worker_state import _mapped

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


def run_in_place_of_ad_psgd(kind: type[Any], monkeypatch: pytest.MonkeyPatch, **more: Any) -> Any:
    monkeypatch.setitem(METHODS, "ad-psgd", METHODS["ad-psgd"]._replace(kind=kind))
    chosen = {"workers": 3, "batch_size": 4, "checkpoint_steps": 5, "sharding": "static", "epochs": 1}
    return run(**SETTINGS["ad-psgd"], **chosen, train=toy_rows(120, groups=6), **more)


def test_an_own_method_continues_with_its_counters_and_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counter of the tutorial's method began again at 0."""
    kept = KeptCheckpoints()
    whole = run_in_place_of_ad_psgd(LazyGossip, monkeypatch, files=kept.files)

    resumed = run_in_place_of_ad_psgd(
        LazyGossip, monkeypatch, files=KeptCheckpoints().files, resume=kept.at(AFTER_FIVE_STEPS)
    )

    np.testing.assert_array_equal(models(resumed), models(whole))


def test_an_attribute_that_no_checkpoint_can_hold_is_refused_at_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match=r"hold HandleGossip\.handle: .* type builtins\.object.* SCRATCH of Hand"):
        run_in_place_of_ad_psgd(HandleGossip, monkeypatch, files=KeptCheckpoints().files)


def test_an_attribute_named_as_scratch_is_not_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    named = type("Named", (HandleGossip,), {"SCRATCH": ("handle",)})
    kept = KeptCheckpoints()
    run_in_place_of_ad_psgd(named, monkeypatch, files=kept.files)
    saved = kept.at(AFTER_FIVE_STEPS).load(0)["algorithm"]["attributes"]
    assert {"steps", "rng", "recent", "partners"} <= saved.keys()
    assert not {"handle", "log", "shared", "model", "_change"} & saved.keys()


class Everything(SavedAttributes):
    """An attribute of each kind that can be saved."""

    def __init__(self, seed: int) -> None:
        numbers = np.arange(3) + seed
        self.number, self.text, self.nothing, self.is_set = seed, f"text {seed}", None, bool(seed % 2)
        self.array, self.scalar = numbers.astype(float), np.float64(seed)
        self.nested = {"a": [(seed, numbers.copy())], 3: "b"}
        self.counter, self.by_default = Counter("ab" * seed), defaultdict(int, {"c": seed})
        self.queue, self.members, self.frozen = deque([seed], maxlen=2), {seed}, frozenset({seed})
        self.generator, self.random = np.random.default_rng(seed), random.Random(seed)


def test_every_kind_of_attribute_comes_back_in_its_type(tmp_path: Path) -> None:
    saved, restored = Everything(3), Everything(4)
    array, queue = restored.array, restored.queue
    torch.save(_mapped(saved.attributes(), np.ndarray, torch.from_numpy), tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)

    restored.restore_attributes(_mapped(loaded, torch.Tensor, torch.Tensor.numpy))

    for name, value in vars(saved).items():
        found = getattr(restored, name)
        if name in ("generator", "random"):
            assert found.random() == value.random()
        else:
            np.testing.assert_equal(found, value, err_msg=name)
            assert type(found) is type(value) or name == "scalar"
    assert restored.array is array
    assert restored.queue is queue
    assert restored.queue.maxlen == 2
