"""The tests would notice: each of them fails when the line that it is there for is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from training.algorithms import d_psgd, registry
from training.simulation import transport

TRAINING_TESTS = Path(__file__).resolve().parents[1]


class Mutation(NamedTuple):
    """A line that is wrong, and a test that must fail."""

    owner: Any
    """The module or class whose attribute is replaced."""
    name: str
    old: str
    new: str
    test: str
    arguments: dict[str, Any] = {}


AD_BY_HAND = (
    "algorithms/test_ad_psgd.py::test_the_gradient_at_the_snapshot_is_subtracted_from_the_average_that_came_meanwhile"
)
SWARM_BY_HAND = "algorithms/test_swarm_sgd.py::test_two_local_steps_then_the_average_of_updated_models"
D_BY_HAND = "algorithms/test_d_psgd.py::test_models_are_mixed_before_the_gradient_at_the_unmixed_model_is_subtracted"
HEAVY_BALL = "algorithms/test_slowmo.py::test_around_every_step_of_ar_sgd_it_is_heavy_ball"
IS_BASE = "algorithms/test_slowmo.py::test_without_slow_momentum_and_average_it_is_the_base_method"
SAME_MEAN = (
    "algorithms/test_slowmo_disagreement.py::test_the_mean_moves_as_with_the_exact_average_though_workers_differ"
)
RESUME = "simulation/test_resume.py::test_every_method_goes_on_from_a_checkpoint_bit_by_bit"
INLINE = {"overlap": "inline", "exchange": "locked"}
RING = {"base": {"algorithm": "d-psgd", "topology": "ring"}, "beta": 0.6}
SWARM = {"method": "swarm-sgd", "optimizer": "adam", "slowmo": "slowmo"}

MUTATIONS = {
    "half of the difference is not half": Mutation(
        transport, "half_difference", "difference *= 0.5", "difference *= 0.4", AD_BY_HAND, INLINE
    ),
    "only one side of a pair moves": Mutation(
        transport.SimVector, "_apply", "theirs.values -= difference", "pass", SWARM_BY_HAND, {"exchange": "locked"}
    ),
    "weights add up to less than 1": Mutation(
        registry.make_topology, "", "1 - sum(given)", "0.9 - sum(given)", D_BY_HAND, {"workers": 5}
    ),
    "weights are not symmetric": Mutation(
        d_psgd.DPsgd, "step", "+= weight * vector", "+= weight * (1.1 if i else 0.9) * vector", SAME_MEAN, RING
    ),
    "the model is mixed after the step": Mutation(
        d_psgd.DPsgd,
        "step",
        "self.model.read(self._sent)",
        "self.model.read(self._sent); self._sent *= 1.01",
        D_BY_HAND,
        {"workers": 3},
    ),
}
