"""The parts of a training with agents: accounts, partitions, connections, the method of an agent."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from ranks import wait_until

from training.agents.agent_process import main
from training.agents.crew import Cluster, Crew
from training.agents.driver import Driver
from training.agents.ledger import Ledger
from training.agents.lifelines import AgentId, Lifeline, Lifelines
from training.agents.local import AgentStart, Home, ask_agent, read_start, start_agent
from training.agents.messages import AbsentError, Given, Install, Message, Reduced, Take, ask, serve
from training.agents.worker import PulledWorker
from training.algorithms.mpca_joint import JointModel
from training.algorithms.mpca_rules import MpcaConstants
from training.errors import CheckpointError, LaunchError
from training.flat_model import FlatModel
from training.loop.making import make_worker
from training.settings import TrainSettings
from training.transports.basics import run_now
from training.transports.shards import shard_slices
from training.transports.transport import SingleTransport


def account(used: int) -> dict[str, Any]:
    sums = {"samples": used, "loss": 0.0, "weight": 0.0, "correct": 0.0}
    return {
        "steps": used,
        "bytes": 0,
        "sums": sums,
        "seconds": {},
        "counters": {},
        "used": used,
        "square": 1.0,
        "buffers": np.empty(0),
    }


@pytest.mark.parametrize("seed", range(8))
def test_agents_of_any_speed_use_exactly_the_samples_and_one_epoch_ends_at_a_time(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, epochs, batch, count = int(rng.integers(20, 400)), int(rng.integers(1, 6)), int(rng.integers(1, 40)), 3
    ledger = Ledger(rows=rows, epochs=epochs, batch_size=batch, partitions=count)
    speeds = rng.integers(1, 60, count)
    used = [0] * count
    for index in range(count):
        ledger.begin(index)
    ended = 0
    for _ in range(10_000):
        if ledger.is_done:
            break
        ledger.grant()
        for index in range(count):
            if rng.random() < 0.02:
                # It is lost and replaced; what it did since its last answer is not counted.
                ledger.end(index)
                ledger.begin(index)
                used[index] = 0
                continue
            left = ledger.limit(index) - used[index]
            steps = min(int(speeds[index]), left // batch)
            used[index] += steps * batch
            if ledger.to_the_limit and steps < speeds[index]:
                used[index] = max(used[index], ledger.limit(index))
            ledger.report(index, account(used[index]))
        if ledger.epoch_is_over:
            ledger.records()
            ended += 1
            assert not ledger.epoch_is_over
    assert (ledger.used, ended) == (rows * epochs, epochs)


def test_accounts_continue_with_fewer_partitions() -> None:
    ledger = Ledger(rows=10, epochs=2, batch_size=2, partitions=3)
    for index, used in enumerate((4, 3, 5)):
        ledger.begin(index)
        ledger.report(index, account(used))
    ledger.records()
    other = Ledger(rows=10, epochs=2, batch_size=2, partitions=2)
    other.load_state(ledger.state())
    assert (other.used, other.epoch, other.totals(0)["samples"], other.totals(1)["samples"]) == (12, 1, 9, 3)
    assert other.epoch_totals["samples"] == 0


@pytest.fixture
def lifelines() -> Iterator[Lifelines]:
    made = Lifelines("127.0.0.1", "secret")
    yield made
    made.close()


def test_the_driver_knows_who_is_ready_and_who_is_gone(lifelines: Lifelines) -> None:
    ended: list[int] = []
    driver = ("127.0.0.1", lifelines.port)
    agents = [
        Lifeline(driver, "secret", AgentId(index, 7), on_end=lambda index=index: ended.append(index))
        for index in range(2)
    ]
    stranger = socket.create_connection(driver)
    stranger.sendall(b'{"token": "guess", "partition": 0, "number": 9, "ready": true}\n')
    agents[0].say_ready()
    wait_until(lambda: lifelines.poll(0.05) == [] and lifelines.ready == {AgentId(0, 7)}, what="one is ready")
    wait_until(lambda: not lifelines.poll(0.05) and select.select([stranger], [], [], 0)[0] != [], what="it is let go")
    agents[0].close()
    wait_until(lambda: lifelines.poll(5) == [AgentId(0, 7)], what="one is gone")
    assert lifelines.ready == set()
    lifelines.close()
    wait_until(lambda: sorted(ended) == [0, 1], what="agents know that the driver is gone")


class _NoCluster(Cluster):
    """Starts nothing."""

    def start(self, agents: Sequence[AgentId], epoch: int, joint: list[Install]) -> None: ...


def test_an_agent_that_came_too_late_was_taken_for_its_successor(
    lifelines: Lifelines, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = TrainSettings.model_validate({"algorithm": "mpca", "launcher": "spark-agents"})
    ledger, words = Ledger(rows=10, epochs=1, batch_size=2, partitions=1), []
    crew = Crew(settings, _NoCluster(), lifelines, ledger, words.append)
    with monkeypatch.context() as patch:
        patch.setattr("training.agents.crew._START_SECONDS", -1.0)
        crew.review(0, list)
    crew.review(0, list)
    assert len(words) == 1
    assert "it did not start within" in words[0]
    ended: list[int] = []
    late, successor = (
        Lifeline(("127.0.0.1", lifelines.port), "secret", AgentId(0, number), on_end=lambda n=number: ended.append(n))
        for number in range(2)
    )
    late.say_ready()
    wait_until(lambda: crew.review(0, list, seconds=0.05) or ended == [0], what="the late one is let go", seconds=10)
    successor.say_ready()
    wait_until(lambda: crew.review(0, list, seconds=0.05) or crew.is_complete, what="its successor trains", seconds=10)
    assert (crew.live, crew.num_lost) == ({AgentId(0, 1)}, 1)


def test_a_driver_that_continued_gave_all_shards_the_cycles_of_the_one_with_the_fewest(lifelines: Lifelines) -> None:
    settings = TrainSettings.model_validate({"algorithm": {"name": "mpca", "shards": 2}, "launcher": "spark-agents"})
    ledger, cluster = Ledger(rows=10, epochs=1, batch_size=2, partitions=1), _NoCluster()
    driver = Driver(settings, np.zeros(5), ledger, Crew(settings, cluster, lifelines, ledger, print), cluster)
    names = ("model", "trajectory", "projected")
    given: list[dict[str, Any]] = [
        {"cycle": cycle, **{name: torch.rand(size, dtype=torch.float64) for name in names}}
        for cycle, size in ((4, 2), (3, 3))
    ]
    driver.load_state(given, 9)
    found = driver.state()
    assert [shard["cycle"] for shard in found] == [4, 3]
    assert all(torch.equal(one[name], other[name]) for one, other in zip(found, given, strict=True) for name in names)


def test_a_checkpoint_of_another_number_of_shards_is_refused(lifelines: Lifelines) -> None:
    cluster, ledger = _NoCluster(), Ledger(rows=10, epochs=1, batch_size=2, partitions=1)
    three, one = (
        Driver(settings, np.zeros(5), ledger, Crew(settings, cluster, lifelines, ledger, print), cluster)
        for shards in (3, 1)
        for settings in [TrainSettings.model_validate({"algorithm": {"name": "mpca", "shards": shards}})]
    )
    with pytest.raises(CheckpointError, match=r"in 3 shard\(s\), and train\.algorithm\.shards is 1\."):
        one.load_state(three.state(), 9)
    assert one.number == 0


def test_the_last_agent_removes_the_folder_and_a_late_task_does_not_make_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    home = Home("run", ("127.0.0.1", 1), "")
    agents = [home.enter() for _ in range(3)]
    home.file(AgentId(4, 3), "log").touch()
    home.leave(agents[0])
    assert home.folder.exists()
    # This one is killed.
    os.close(agents[1])
    home.leave(agents[2])
    with pytest.raises(AbsentError):
        ask_agent(home, AgentId(4, 3), Take(0, 0, 0, False, 0.0), 1)
    assert list(tmp_path.iterdir()) == []


def test_the_next_run_removes_the_folders_whose_agents_were_all_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    killed, runs, new = (Home(name, ("127.0.0.1", 1), "") for name in ("killed", "runs", "new"))
    os.close(killed.enter())
    killed.file(AgentId(0, 1), "npz").touch()
    runs.enter()
    assert not killed.folder.exists()
    new.enter()
    assert {path.name for path in tmp_path.iterdir()} == {runs.folder.name, new.folder.name}


def test_the_error_of_an_agent_reaches_the_driver(lifelines: Lifelines) -> None:
    agent = Lifeline(("127.0.0.1", lifelines.port), "secret", AgentId(1, 0), on_end=lambda: None)
    agent.say_error(LaunchError("no file"))
    with pytest.raises(LaunchError, match="the agent of partition 1 failed: no file"):
        wait_until(lambda: bool(lifelines.poll(5)), what="the error arrives")


def test_only_who_knows_the_token_reaches_an_agent(tmp_path: Path) -> None:
    def answer(message: Message) -> Given:
        assert isinstance(message, Take)
        return Given(AgentId(1, 2), np.full(3, message.cycle), {})

    path = tmp_path / "0.sock"
    with pytest.raises(AbsentError):
        ask(path, b"token", Take(4, 0, 0, False, 0.0), 5)
    serve(path, b"token", answer)
    with pytest.raises(AbsentError):
        ask(path, b"guess", Take(4, 0, 0, False, 0.0), 5)
    given = ask(path, b"token", Take(4, 0, 0, False, 0.0), 5)
    assert given is not None
    assert given.contribution.tolist() == [4, 4, 4]


def test_the_folder_of_the_agents_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    home = Home("run", ("127.0.0.1", 1), "")
    os.close(home.enter())
    assert home.folder.stat().st_mode & 0o077 == 0
    home.folder.chmod(0o755)
    with pytest.raises(LaunchError, match="only this user can open"):
        home.enter()
    home.folder.rmdir()
    home.folder.symlink_to(tmp_path)
    with pytest.raises(LaunchError, match="is no folder of this user"):
        home.enter()


def test_an_agent_without_a_driver_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as server:
        gone = server.getsockname()
    home = Home("run", gone, "secret")
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: None)
    joint = [Install(0, np.ones(1, np.float32), 3), Install(1, np.ones(2, np.float32), 2)]
    start_agent(home, AgentStart(AgentId(4, 5), 1, "run.json", {}), joint)
    found, start, shards = read_start(home.file(AgentId(4, 5), "json"))
    assert (found, start.agent, [each.cycle for each in shards]) == (home, AgentId(4, 5), [3, 2])
    assert main(["", str(home.enter()), str(home.file(AgentId(4, 5), "json"))]) == 1
    assert list(tmp_path.iterdir()) == []


def pulled(**method: Any) -> tuple[PulledWorker, FlatModel]:
    """An agent's method on a model of 3 parameters, in two shards, with x = 1 and x~* = 1."""
    pull = {} if method.get("form") == "replacement" else {"alpha": 0.5, "alpha_free": 0, "alpha_ramp": 0}
    chosen = {"name": "mpca", **pull, **method}
    settings = TrainSettings.model_validate({"algorithm": chosen, "optimizer": "sgd", "learning_rate": 1.0})
    module = torch.nn.Linear(2, 1)
    model = FlatModel(module)
    joint = [Install(0, np.ones(1, np.float32), 0), Install(1, np.ones(2, np.float32), 0)]
    worker = make_worker(model, settings, SingleTransport())
    return PulledWorker(settings.algorithm, worker, joint), model  # type: ignore[arg-type]


def take_step(worker: PulledWorker, model: FlatModel, gradient: list[float]) -> list[float]:
    """The parameters after a step."""

    async def compute() -> None:
        model.write_gradient(np.array(gradient, np.float32))

    run_now(worker.step(compute, 1))
    now = model.empty()
    model.read(now)
    return now.tolist()


@pytest.mark.parametrize(
    ("form", "expected"),
    [("displacement", [1, 2, 2]), ("regulariser", [1, 2, 2]), ("replacement", [1, 3, 3])],
)
def test_the_joint_model_pulls_an_agent_at_every_step(form: str, expected: list[float]) -> None:
    worker, model = pulled(form=form)
    assert take_step(worker, model, [0, 0, 0]) == [1, 1, 1]
    worker.install(Install(1, np.full(2, 3, np.float32), 1))
    # Half of the way with alpha 0.5.
    assert take_step(worker, model, [0, 0, 0]) == expected
    assert worker.counters()["bytes_received"] == 8


@pytest.mark.parametrize("form", ["displacement", "regulariser"])
def test_shards_of_an_agent_were_pulled_with_unequal_strength(form: str) -> None:
    # Ranks take one alpha, of the cycles that all shards have been through; so does an agent.
    ramp = {"alpha": 0.125, "alpha_peak": 0.5, "alpha_free": 1, "alpha_ramp": 2}
    constants, parts, found = MpcaConstants.model_validate(ramp), shard_slices(3, 2), []
    worker, model = pulled(form=form, **ramp)
    ranks = JointModel(SingleTransport(), np.ones(3, np.float32), shards=2, constants=constants, weighted=True)
    for turn in range(6):
        ranks.steps += 1
        ranks.begin(np.ones(3, np.float32), ending=False)
        run_now(ranks.finish())
        shard = turn % 2
        cycle = int(ranks.state()["numbers"][1 + shard])
        worker.install(Install(shard, ranks.projected[parts[shard]], cycle))
        model.write(np.full(3, 3, np.float32))
        # From 3 towards 1.
        pull = (3 - np.array(take_step(worker, model, [0, 0, 0]))) / 2
        assert pull.tolist() == pytest.approx([constants.alpha_at(ranks.cycles)] * 3)
        found.append(pull[0])
    assert found == pytest.approx([0, 0.5, 0.5, 0.25, 0.25, 0.125])


def test_a_contribution_has_the_steps_since_the_last_one_and_nothing_that_is_not_finite() -> None:
    worker, model = pulled()
    take_step(worker, model, [0, 0, 0])
    take_step(worker, model, [0, np.nan, 0])
    assert worker.contribute(0).tolist() == [1, 1]
    assert worker.contribute(0).tolist() == [0, 0]
    assert worker.counters()["steps_not_finite"] == 1
    model.write(np.array([1, np.inf, 1], np.float32))
    assert worker.contribute(1).tolist() == [0, 0, 0]
    assert take_step(worker, model, [0, 0, 0]) == [1, 1, 1]
    assert worker.counters()["shards_replaced"] == 1


def test_sums_of_contributions_keep_who_gave_them() -> None:
    parts = [Reduced(np.array([float(index), 1.0]), ((AgentId(index, 0), {}),)) for index in range(3)]
    total = Reduced().plus(parts[0]).plus(parts[1].plus(Reduced()).plus(parts[2]))
    assert total.total is not None
    assert total.total.tolist() == [3, 3]
    assert [agent.partition for agent, _ in total.accounts] == [0, 1, 2]


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"algorithm": "ad-psgd"}, "ad-psgd does not have. Use the algorithm mpca"),
        ({"algorithm": "mpca", "slowmo": {"tau": 3}}, "slowmo: ... has no effect"),
        ({"algorithm": "mpca", "skew": {"by": "class"}}, "skew: ... has no effect"),
        ({"algorithm": "mpca", "staleness_bound": 3}, "staleness_bound: 3 has no effect"),
        ({"algorithm": "mpca", "sharding": "static"}, "sharding: static has no effect"),
        ({"algorithm": {"name": "mpca", "cycle_steps": 5}}, "whenever its driver is ready"),
        ({"algorithm": {"name": "mpca", "overlap": "inline"}}, "whenever its driver is ready"),
    ],
)
def test_methods_without_a_joint_model_are_refused(chosen: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        TrainSettings.model_validate({"launcher": "spark-agents", **chosen})
