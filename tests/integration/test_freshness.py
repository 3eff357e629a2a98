"""What makes a stage stale: changes that can change its result, and no others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import in_use, version_of
from finished_run import FinishedRun
from rich.console import Console

from pipeline.commands.clean import clean
from pipeline.commands.plan import lines, plan
from pipeline.commands.status import verify
from pipeline.config import load_config
from pipeline.configuration.yaml_text import read_yaml, write_yaml
from pipeline.run_folder import RunFolder
from pipeline.runner import Runner, State
from pipeline.runs import code_meaning
from pipeline.runs.manifest import sealed_manifest
from pipeline.runs.store import StageStore

pytestmark = [pytest.mark.spark, pytest.mark.distributed, pytest.mark.end_to_end]
Edit = Callable[[str, str, str], None]

#: Files in which a comment and another docstring change nothing.
FILES_WITH_RESULTS = (
    "models/evaluation/figures.py",
    "hep_core/secrets.py",
    "features/errors.py",
    "training/launching/mpirun.py",
    "features/kernels.py",
    "models/networks/hlf.py",
    "pipeline/reporting/page.py",
)
#: Files whose code starts, stores or prints, or belongs to other networks and methods.
FILES_WITHOUT_RESULTS = (
    "pipeline/terminal/tables.py",
    "pipeline/runs/lock.py",
    "training/launching/launcher.py",
    "models/networks/particles.py",
    "training/algorithms/swarm_sgd.py",
    "training/algorithms/slowmo.py",
    "training/algorithms/server.py",
    "training/algorithms/stale_synchronous.py",
)
IMPORT = "from __future__ import annotations\n"


class Plans:
    """`plan` of a finished run, with the config and the code that a test has changed."""

    def __init__(self, finished: FinishedRun, tmp_path: Path) -> None:
        self.run_dir = finished.restore()
        self.config = tmp_path / "config.yaml"
        self._sections = read_yaml(finished.config.read_text(encoding="utf-8"))
        self.change()

    def change(self, **changes: dict[str, object]) -> None:
        """Write the config with changed keys of its sections."""
        sections = dict(self._sections)
        for name, keys in changes.items():
            sections[name] = sections.get(name, {}) | keys
        self.config.write_text(write_yaml(sections), encoding="utf-8")

    @property
    def run_folder(self) -> RunFolder:
        return RunFolder(load_config(str(self.config)), Console(quiet=True))

    def lines(self) -> list[str]:
        """The printed plan."""
        return list(lines(plan(self.run_folder)))

    def reasons(self) -> dict[str, list[str]]:
        """Reasons of the stages that would run, without those that only pass on others'."""
        reasons = {}
        for stage_plan in Runner(self.run_folder).plan():
            if stage_plan.state is not State.FRESH:
                reasons[stage_plan.stage.name] = [
                    reason
                    for reason in stage_plan.reasons
                    if "would run, and its result may change" not in reason
                ]
        return reasons


@pytest.fixture
def plans(finished_run: FinishedRun, tmp_path: Path) -> Plans:
    fresh_plans = Plans(finished_run, tmp_path)
    assert fresh_plans.reasons() == {}
    return fresh_plans


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code."""
    root = tmp_path_factory.mktemp("code")
    no_caches = shutil.ignore_patterns("__pycache__")
    for package in code_meaning.PACKAGES:
        shutil.copytree(code_meaning.ROOT / package, root / package, ignore=no_caches)
    return root


@pytest.fixture
def edit(code: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Edit]:
    """A function that changes a text in a file of the copy, for one test."""
    monkeypatch.setattr(code_meaning, "ROOT", code)
    original_texts: dict[Path, str] = {}

    def replace(name: str, old: str, new: str) -> None:
        path = code / name
        text = path.read_text(encoding="utf-8")
        original_texts.setdefault(path, text)
        assert old in text, f"{name} does not hold {old!r} any more; the test needs another line"
        path.write_text(text.replace(old, new, 1), encoding="utf-8")

    yield replace
    for path, text in original_texts.items():
        path.write_text(text, encoding="utf-8")


def test_edits_that_cannot_change_a_result_run_nothing(plans: Plans, edit: Edit) -> None:
    for name in FILES_WITH_RESULTS:
        edit(name, '"""', '"""Said differently. ')
        edit(name, IMPORT, f"# A comment.\n{IMPORT}")
    for name in FILES_WITHOUT_RESULTS:
        edit(name, IMPORT, f"{IMPORT}\n_NEW = 1\n")

    assert plans.reasons() == {}


def test_a_missing_output_makes_its_stage_stale(plans: Plans) -> None:
    version = version_of(plans.run_dir, "features")
    path = next(version.glob("train/*.parquet"))
    path.unlink()

    reasons = plans.reasons()["features"]

    assert reasons == [f"output is gone or damaged: {path.relative_to(version)}"]
    assert verify(plans.run_folder) == [str(path)]


def test_packages_of_another_version_are_mentioned_and_run_nothing(plans: Plans) -> None:
    path = version_of(plans.run_dir, "features") / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    installed = manifest["packages"]["numpy"]
    manifest["packages"]["numpy"] = "1.0"
    path.write_text(json.dumps(sealed_manifest(manifest)), encoding="utf-8")

    assert plans.reasons() == {}
    note = f"            note: made with numpy 1.0; installed is {installed}"
    assert note in plans.lines()


def test_a_repeated_training_with_the_same_result_makes_no_later_stage_stale(
    plans: Plans, finished_run: FinishedRun
) -> None:
    finished_run.output_of("train", "--force")

    assert plans.reasons() == {}


@pytest.mark.usefixtures("no_figures")
def test_further_trainings_leave_the_first_and_its_export_and_continue_after_a_kill(
    plans: Plans, finished_run: FinishedRun
) -> None:
    two_seeds = ("--set", "train.seeds=2")
    store = StageStore(plans.run_dir, "train")
    plans.change(train={"seeds": 2})
    assert plans.reasons() == {
        "train": ["hlf-seed-2 is new"],
        "evaluate": [],
        "export": [],
        "report": [],
    }

    first_output = finished_run.output_of("train", *two_seeds)

    assert "hlf: nothing changed, taken over" in first_output
    # Export holds the thresholds of the working points, so it waits for what evaluate finds.
    assert set(plans.reasons()) == {"evaluate", "export", "report"}
    first = in_use(plans.run_dir, "train")
    counters = first.manifest.counters
    loss_of_second_seed = counters["further"]["hlf"]["hlf-seed-2"]["best_val_loss"]
    assert loss_of_second_seed != counters["networks"]["hlf"]["best_val_loss"]

    # As a kill before the end leaves it: checkpoints, but no manifest; the version before is in
    # use.
    (first.folder / "manifest.json").unlink()
    store.point_to(store.complete()[0])
    removable = clean(plans.run_folder, 3, dry_run=True)
    assert first.folder in [version.folder for version in removable]
    second_output = finished_run.output_of("train", *two_seeds)

    message = "hlf-seed-2: the interrupted run has finished this training"
    assert message in second_output
    second = in_use(plans.run_dir, "train")
    counters = second.manifest.counters
    assert counters["further"]["hlf"]["hlf-seed-2"]["best_val_loss"] == loss_of_second_seed
    assert (second.folder / "hlf-seed-2" / "model" / "weights.pt").is_file()
    evaluate_output = finished_run.output_of("evaluate", *two_seeds)
    assert "mean and spread over trainings" in evaluate_output


def test_interrupted_work_of_other_settings_is_kept_named_and_continued(
    plans: Plans, finished_run: FinishedRun
) -> None:
    # As a kill leaves it: a checkpoint, no manifest.
    interrupted = plans.run_dir / "train" / "0007-0123abcd"
    shutil.copytree(version_of(plans.run_dir, "train"), interrupted)
    (interrupted / "manifest.json").unlink()
    digest = (interrupted / "hlf" / "made-from").read_text(encoding="utf-8")

    # One worker: ranks take seconds to start.
    other_settings = ("--set", "train.learning_rate=0.002", "--set", "train.workers=1")
    finished_run.output_of("train", *other_settings)

    assert interrupted.is_dir()
    (note,) = [line for line in plans.lines() if str(interrupted) in line]
    assert "stays until `clean`" in note
    assert "a run with its settings and code continues it" in note

    # The settings return: the interrupted run is continued, not begun again.
    output = finished_run.output_of("train")

    assert "hlf: the interrupted run has finished this training" in output
    made_from = version_of(plans.run_dir, "train") / "hlf" / "made-from"
    assert made_from.read_text(encoding="utf-8") == digest
    assert not interrupted.exists()
