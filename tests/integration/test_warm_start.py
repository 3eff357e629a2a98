"""`train.warm_start`: from the model in use if that has seen no test event, else from fresh weights, with a message."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from lent_spark import command
from undisturbed_run import Undisturbed, version_of

from pipeline.machine.spark_session import SparkProvider
from pipeline.runs.model_registry import Registry
from training.launching.rank import RunSpec
from training.workloads.hep_settings import HepSettings

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(900)]

Run = Callable[..., tuple[str, str]]
WARM = ("--set", "train.warm_start=true", "--set", "train.workers=1")
OTHER_SPLIT = [f"features.split.{name}={share}" for name, share in (("train", 0.5), ("val", 0.2), ("test", 0.3))]


@pytest.fixture
def run(undisturbed: Undisturbed, provider: SparkProvider) -> Run:
    """A command in this process; what it printed and said."""

    def run(*words: str) -> tuple[str, str]:
        done = command(provider, *words, "--config", undisturbed.config)
        assert done.exit_code == 0, done.stderr
        return done.stdout, done.stderr

    return run


def train(run: Run, undisturbed: Undisturbed, *options: str) -> tuple[str, str | None]:
    """The message about the start, and the initial weights that the ranks got."""
    _, words = run("train", *WARM, *options)
    (said,) = [line.strip() for line in words.splitlines() if "model in use" in line]
    spec = RunSpec.load(version_of(undisturbed.run_dir, "train") / "hlf" / "run.json")
    assert isinstance(spec.workload, HepSettings)
    return said, None if spec.workload.start_from is None else str(spec.workload.start_from)


def test_a_model_that_saw_what_are_test_events_now_is_not_begun_with(undisturbed: Undisturbed, run: Run) -> None:
    run_dir = undisturbed.restore()
    said, start = train(run, undisturbed)
    assert (said, start) == ("there is no model in use to start from: fresh weights", None)
    undisturbed.restore()
    run("promote")
    current = Registry(run_dir, "hlf").current()
    assert current is not None
    in_use = json.loads(run("status", "--json")[0])["in_use"]
    assert in_use["hlf"]["version"] == current.name
    assert in_use["hlf"]["train"] == version_of(run_dir, "train").name

    said, start = train(run, undisturbed)
    assert said == f"starting from the model in use, {current.name}, and its scaling"
    assert start == str(current.folder / "model")

    # It was begun with, and the accuracy quoted on events that it had been trained on.
    split = [word for each in OTHER_SPLIT for word in ("--set", each)]
    run("features", *split)
    said, start = train(run, undisturbed, *split)
    found = re.fullmatch(rf"the model in use, {current.name}, was trained on (\d+) of the test events: .*", said)
    assert found
    assert int(found[1]) > 10
    assert start is None

    (undisturbed.run_dir / "features" / current_features(undisturbed) / "dataset.json").unlink()
    said, start = train(run, undisturbed, *split, "--force")
    assert said == f"the model in use, {current.name}, was trained on unknown events: fresh weights"
    assert start is None

    # No training could replace a model that an earlier release had written.
    path = current.folder / "model" / "model.json"
    content = json.loads(path.read_text())
    del content["settings"]["hidden"]
    path.write_text(json.dumps(content))
    said, start = train(run, undisturbed, *split, "--force")
    assert said.startswith(f"the model in use, {current.name}, cannot be read (")
    assert said.endswith("): fresh weights")
    assert start is None


def current_features(undisturbed: Undisturbed) -> str:
    """Name of the first features, from which the model in use was trained."""
    return min(path.name for path in (undisturbed.run_dir / "features").glob("0*"))
