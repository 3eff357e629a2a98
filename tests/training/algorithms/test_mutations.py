"""The tests can fail: each fails if the line that it tests is wrong."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FunctionType, MappingProxyType
from typing import Any, NamedTuple

import pytest

from training.algorithms import method as methods
from training.algorithms.adag import Adag
from training.algorithms.agn import Agn
from training.algorithms.ar_sgd import ArSgd
from training.algorithms.base import Algorithm, mean_over_workers
from training.algorithms.dropping import Dropper
from training.algorithms.dynsgd import DynSgd
from training.algorithms.elastic import ElasticAlgorithm
from training.algorithms.gossip import GossipAlgorithm
from training.algorithms.mpca import Mpca
from training.algorithms.mpca_joint import JointModel
from training.algorithms.partners import RandomPartners
from training.algorithms.slowmo import SlowMo
from training.algorithms.swarm_sgd import SwarmSgd, draw_local_steps
from training.compiled.optimizer import VectorOptimizer
from training.errors import StalledError
from training.loop import worker_state
from training.loop.trainer import Trainer
from training.simulation.collectives import half_difference
from training.simulation.shared_vector import SimVector
from training.simulation.stacked import StackedWork
from training.topology import make_topology

TESTS = Path(__file__).resolve().parents[2]


class Mutation(NamedTuple):
    """A line that is made wrong, and a test that must fail then."""

    function: Callable[..., Any]
    old: str
    new: str
    test: str
    arguments: Mapping[str, Any] = MappingProxyType({})


AD_BY_HAND = (
    "training/algorithms/test_ad_psgd.py"
    "::test_the_gradient_at_the_snapshot_is_subtracted_from_the_average_that_came_meanwhile"
)
SWARM_BY_HAND = (
    "training/algorithms/test_swarm_sgd.py"
    "::test_a_worker_that_was_met_learned_of_the_average_only_after_its_next_local_steps"
)
LOCAL_BY_HAND = "training/algorithms/test_local_sgd.py::test_models_are_averaged_after_each_third_step"
TOPOLOGY = "training/test_topology.py::test_weights_are_symmetric_doubly_stochastic_and_not_negative"
AR_IS_SEQUENTIAL = "training/algorithms/test_equalities.py::test_ar_sgd_is_one_worker_fed_all_batches"
HEAVY_BALL = "training/algorithms/test_slowmo.py::test_around_every_step_of_ar_sgd_it_is_heavy_ball"
SAME_MEAN = (
    "training/algorithms/test_slowmo_disagreement.py"
    "::test_the_mean_moves_as_with_the_exact_average_though_workers_differ"
)
IN_TURN = "training/algorithms/test_servers.py::test_pushes_one_after_the_other_follow_the_equation"
RESUME = "training/simulation/test_resume.py::test_every_method_continues_from_a_checkpoint_bit_by_bit"
CLOCK = "training/simulation/test_resume.py::test_the_clock_of_the_learning_rate_continues"
MPCA = "training/algorithms/test_mpca.py"
RING = {"base": {"algorithm": "d-psgd", "topology": "ring"}, "beta": 0.6}
BY_HAND = {"exchange": "memory"}
#: Batches that differ in size between workers.
UNEVEN = {"chosen": {"optimizer": "sgd"}, "workers": 3}


def resumed(method: str, slowmo: str = "plain") -> dict[str, Any]:
    return {"method": method, "optimizer": "adam", "slowmo": slowmo}


def forgotten(name: str, method: str, slowmo: str = "plain") -> Mutation:
    """A checkpoint without one of the things that the algorithm names in `STATE_KEYS`."""
    found = 'vars(kind).get("STATE_KEYS", ())'
    return Mutation(
        Algorithm._names_kept, found, f'{found} if name != "{name}"', RESUME, resumed(method, slowmo)
    )  # fmt: skip


MUTATIONS = {
    "the half in an average": Mutation(half_difference, "*= 0.5", "*= 0.4", AD_BY_HAND, BY_HAND),
    "the partner's side of an average": Mutation(
        SimVector._apply, "theirs.values -= difference", "pass", SWARM_BY_HAND, {"exchange": "memory"}
    ),
    "weights that add up": Mutation(
        make_topology, "1 - sum(given)", "0.9 - sum(given)", TOPOLOGY, {"name": "ring", "workers": 5}
    ),
    "symmetric weights": Mutation(
        make_topology, "(1 / (1 +", "((0.8 + 0.2 * (rank % 2)) / (1 +", TOPOLOGY, {"name": "ring", "workers": 5}
    ),
    "doubly stochastic mixing": Mutation(
        make_topology, "(1 / (1 +", "((0.8 + 0.2 * (rank % 2)) / (1 +", SAME_MEAN, RING
    ),
    "progress added and not written over": Mutation(
        GossipAlgorithm.own_step, "self.model.read(self._change)\n", "self.model.read(self._change)\n"
        "        await self.shared.read(self._snapshot)\n", AD_BY_HAND, BY_HAND,
    ),
    "local steps from the shared vector": Mutation(
        SwarmSgd.step, "version=await self.read()", "version=0", SWARM_BY_HAND, {"exchange": "memory"}
    ),
    "the mean of local models": Mutation(mean_over_workers, "message[-1] = 1", "message[-1] = 2", LOCAL_BY_HAND),
    "gradients weighted by samples": Mutation(
        ArSgd.step, "gradient *= num_samples", "num_samples = 1", AR_IS_SEQUENTIAL, UNEVEN
    ),
    "slow momentum over the learning rate": Mutation(
        SlowMo._outer_step, " / self._rate", "", HEAVY_BALL, {"beta": 0.5, "changing": False}
    ),
    "slow momentum times the learning rate of today": Mutation(
        SlowMo._outer_step, "self._momentum *= self._beta", "self._momentum *= self._beta * 0.1 / self._rate",
        HEAVY_BALL, {"beta": 0.5, "changing": True},
    ),
    "the rate at the start of the window": Mutation(
        SlowMo.step, "if not self._rate:", "if True:",
        "training/algorithms/test_slowmo.py::test_the_rate_of_a_window_is_that_at_its_start",
    ),
    "streams of partners of their own": Mutation(
        RandomPartners.__init__, '"partners", rank', '"partners"',
        "training/algorithms/test_partners.py::test_choices_of_different_ranks_are_independent",
    ),
    "the mean of geometric numbers": Mutation(
        draw_local_steps, "1 / mean", "1 / (mean + 1)",
        "training/algorithms/test_swarm_sgd.py"
        "::test_geometric_numbers_of_local_steps_have_the_right_mean_and_differ_between_ranks",
    ),
    "gradients that are not finite": Mutation(
        Algorithm.has_gradient, "self.model.gradient_is_finite()", "True",
        "training/algorithms/test_nan_guard.py::test_the_other_workers_continue",
        {"method": "d-psgd", "slow": {}, "bad": float("nan")},
    ),
    "locks in the order of the ranks": Mutation(
        SimVector._average, " if self._rank < theirs._rank else (theirs, self)", "",
        "property/test_training_gossip.py::test_no_order_of_three_workers_ends_in_a_deadlock",
    ),
    "the scheduled rate": Mutation(
        VectorOptimizer.step, 'self.param_groups[0]["lr"]', "0.05",
        "training/compiled/test_optimizer.py::test_steps_are_those_of_torch",
        {"chosen": {"optimizer": "adam"}, "precision": "float64"},
    ),
    "slow momentum in a checkpoint": forgotten("_momentum", "d-psgd", "slowmo"),
    "the start of the window in a checkpoint": forgotten("_origin", "d-psgd", "slowmo"),
    "the mean of local steps": Mutation(Agn.weighed, "change / self.taken", "change", IN_TURN, {"case": "agn"}),
    "staleness of a push": Mutation(DynSgd.weighed, " + 1)", " + 2)", IN_TURN, {"case": "dynsgd"}),
    "the way of each weight": Mutation(
        Adag._scale, "np.square(way)", "np.square(np.linalg.norm(way))", IN_TURN, {"case": "adag, equation 4.1"}
    ),
    "the server's side of an exchange": Mutation(
        ElasticAlgorithm.meet, "shard.vector += elastic", "pass",
        "training/algorithms/test_servers.py::test_an_exchange_keeps_the_sum_of_the_workers_and_the_server",
        {"method": "easgd", "synchronous": False},
    ),
    "what is sent leaves the residual": Mutation(
        Dropper.take, "self.residual[indices] = 0", "pass",
        "training/algorithms/test_dropping.py::test_what_is_sent_and_what_is_left_is_all_that_came",
    ),
    "steps since the last push in a checkpoint": forgotten("_since", "agn"),
    "steps of the window in a checkpoint": forgotten("_done", "ar-sgd", "slowmo"),
    "local steps in a checkpoint": forgotten("_done", "local-sgd"),
    "partners in a checkpoint": Mutation(
        RandomPartners.load_state, "self._rng.bit_generator.state = state", "pass", RESUME, resumed("ad-psgd")
    ),
    "computing times in a checkpoint": Mutation(
        StackedWork.load_state, 'self._times.load_state(state["times"])', "pass", RESUME, resumed("ad-psgd")
    ),
    "the optimizer in a checkpoint": Mutation(
        worker_state.start, 'algorithm.optimizer.load_state_dict(own["optimizer"])', "pass", RESUME, resumed("ar-sgd")
    ),
    "a sum that has arrived in a checkpoint": Mutation(
        JointModel.restore, 'self._message = state["arrived"]', "pass",
        f"{MPCA}::test_ten_steps_and_ten_after_a_resume_are_twenty", {"chosen": {"cycle_steps": 3}},
    ),
    "the last steps of all before the end": Mutation(
        JointModel.begin, "ending and not self.steps.any()", "ending",
        f"{MPCA}::test_replicas_stay_equal_though_nobody_waits", {"shards": 3},
    ),
    "the steps of a sum under way": Mutation(
        JointModel.state, "+= self._sent", "+= 0",
        f"{MPCA}::test_replicas_stay_equal_though_nobody_waits", {"shards": 2},
    ),
    "nobody waits": Mutation(
        Mpca._exchange, "not self.joint.is_done", "False",
        f"{MPCA}::test_replicas_stay_equal_though_nobody_waits", {"shards": 1},
    ),
    "samples of all workers in a checkpoint": Mutation(
        Trainer._epochs_together, "done=self._num_rows - int(left.sum())", "done=0", CLOCK, {"method": "ad-psgd"}
    ),
}  # fmt: skip


def named_test(test: str) -> Callable[..., None]:
    """The function of a test, from its file."""
    path, name = test.split("::")
    spec = importlib.util.spec_from_file_location(f"mutated_{Path(path).stem}", TESTS / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[..., None] = getattr(module, name)
    return function


def mutated(function: Callable[..., Any], old: str, new: str) -> FunctionType:
    """The function with some text replaced, made within its own module."""
    source = inspect.getsource(function)
    assert source.count(old) == 1, f"'{old}' is not in {function.__qualname__} once: the mutation must follow the code"
    module = sys.modules[function.__module__]
    whole = inspect.getsource(module).replace(source, source.replace(old, new))
    namespace: dict[str, Any] = {"__name__": module.__name__}
    exec(compile(whole, str(module.__file__), "exec"), namespace)  # noqa: S102 - our own code
    owner, *names = function.__qualname__.split(".")
    found = namespace[owner]
    for name in names:
        found = vars(found)[name]
    return found


# A simulation that fails leaves coroutines behind.
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("line", MUTATIONS)
def test_a_wrong_line_makes_a_test_fail(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation = MUTATIONS[line]
    test = named_test(mutation.test)
    test(**mutation.arguments)
    for name in ("gossip", "neighbours"):
        # No graph stays in memory from the right code for the wrong, nor the other way round.
        monkeypatch.setattr(f"training.algorithms.{name}.shared_topology", make_topology)
    with monkeypatch.context() as patch:
        # The copy of the module registers its method too.
        patch.setattr(methods, "METHODS", {})
        wrong = mutated(mutation.function, mutation.old, mutation.new)
    monkeypatch.setattr(mutation.function, "__code__", wrong.__code__)
    # A forgotten vector holds what its memory held, at times numbers that overflow.
    with pytest.raises((AssertionError, StalledError, ValueError, IndexError, RuntimeWarning)):
        test(**mutation.arguments)
