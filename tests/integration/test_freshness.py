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


class Plans:
    """`plan` of a finished run, with the config and the code that a test has changed."""

    def __init__(self, finished: FinishedRun, tmp_path: Path) -> None:
        self.run_dir = finished.restore()
        self.config = tmp_path / "config.yaml"
        self._content = read_yaml(finished.config.read_text(encoding="utf-8"))
        self.change()

    def change(self, **sections: dict[str, object]) -> None:
        document = dict(self._content)
        for name, keys in sections.items():
            document[name] = {**document.get(name, {}), **keys}
        self.config.write_text(write_yaml(document), encoding="utf-8")

    @property
    def run_folder(self) -> RunFolder:
        return RunFolder(load_config(str(self.config)), Console(quiet=True))

    def reasons(self) -> dict[str, list[str]]:
        """Of the stages that would run; the reasons that only pass on what happens upstream are left out."""
        plans = Runner(self.run_folder).plan()
        return {
            planned_stage.stage.name: [
                reason
                for reason in planned_stage.reasons
                if "would run, and its result may change" not in reason
            ]
            for planned_stage in plans
            if planned_stage.state is not State.FRESH
        }


@pytest.fixture
def plans(finished_run: FinishedRun, tmp_path: Path) -> Plans:
    created = Plans(finished_run, tmp_path)
    assert created.reasons() == {}
    return created


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code."""
    root = tmp_path_factory.mktemp("code")
    for package in code_meaning.PACKAGES:
        shutil.copytree(
            code_meaning.ROOT / package,
            root / package,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    return root


@pytest.fixture
def edit(code: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Edit]:
    """Change a line of the copy, for one test."""
    monkeypatch.setattr(code_meaning, "ROOT", code)
    state_before: dict[Path, str] = {}

    def change(name: str, old: str, new: str) -> None:
        path = code / name
        text = path.read_text(encoding="utf-8")
        state_before.setdefault(path, text)
        assert old in text, f"{name} does not hold {old!r} any more; the test needs another line"
        path.write_text(text.replace(old, new, 1), encoding="utf-8")

    yield change
    for path, text in state_before.items():
        path.write_text(text, encoding="utf-8")


def test_edits_that_cannot_change_a_result_run_nothing(plans: Plans, edit: Edit) -> None:
    """Comments and docstrings anywhere; code that starts, stores or prints; other networks and methods."""
    for name in (
        *(
            "models/evaluation/figures.py",
            "hep_core/secrets.py",
            "features/errors.py",
            "training/launching/mpirun.py",
        ),
        *("features/kernels.py", "models/networks/hlf.py", "pipeline/reporting/page.py"),
    ):
        edit(name, '"""', '"""Said differently. ')
        edit(name, "\nfrom __future__", "\n# A comment.\nfrom __future__")
    for name in (
        *("pipeline/terminal/tables.py", "pipeline/runs/lock.py", "training/launching/launcher.py"),
        *(
            "models/networks/particles.py",
            "training/algorithms/swarm_sgd.py",
            "training/algorithms/slowmo.py",
        ),
        *("training/algorithms/server.py", "training/algorithms/stale_synchronous.py"),
    ):
        edit(
            name,
            "from __future__ import annotations\n",
            "from __future__ import annotations\n\n_NEW = 1\n",
        )
    assert plans.reasons() == {}


def test_an_output_that_is_gone_makes_its_stage_stale(plans: Plans) -> None:
    version = version_of(plans.run_dir, "features")
    gone = next(version.glob("train/*.parquet"))
    gone.unlink()
    (reason,) = plans.reasons()["features"]
    assert reason == f"output is gone or damaged: {gone.relative_to(version)}"
    assert verify(plans.run_folder) == [str(gone)]


def test_packages_of_another_version_are_mentioned_and_run_nothing(plans: Plans) -> None:
    manifest = version_of(plans.run_dir, "features") / "manifest.json"
    document = json.loads(manifest.read_text(encoding="utf-8"))
    now = document["packages"]["numpy"]
    document["packages"]["numpy"] = "1.0"
    manifest.write_text(json.dumps(sealed_manifest(document)), encoding="utf-8")
    assert plans.reasons() == {}
    assert f"            note: made with numpy 1.0; installed is {now}" in list(
        lines(plan(plans.run_folder))
    )


def test_a_training_again_with_the_same_result_leaves_what_follows_as_it_is(
    plans: Plans, finished_run: FinishedRun
) -> None:
    finished_run.output_of("train", "--force")
    assert plans.reasons() == {}


@pytest.mark.usefixtures("no_figures")
def test_further_trainings_leave_the_first_and_its_export_as_they_are_and_continue_after_a_kill(
    plans: Plans, finished_run: FinishedRun
) -> None:
    plans.change(train={"seeds": 2})
    assert plans.reasons() == {
        "train": ["hlf-seed-2 is new"],
        "evaluate": [],
        "export": [],
        "report": [],
    }
    two, store = ["--set", "train.seeds=2"], StageStore(plans.run_dir, "train")
    assert "hlf: nothing changed, taken over" in finished_run.output_of("train", *two)
    # Export holds the thresholds of the working points, so it waits for what evaluate finds.
    assert set(plans.reasons()) == {"evaluate", "export", "report"}
    version = in_use(plans.run_dir, "train")
    (further,) = version.manifest.counters["further"]["hlf"].values()
    assert further["best_val_loss"] != version.manifest.counters["networks"]["hlf"]["best_val_loss"]
    # As a kill before the end leaves it: checkpoints, but no manifest; the version before is in
    # use.
    (version.folder / "manifest.json").unlink()
    store.point_to(store.complete()[0])
    assert version.folder in [each.folder for each in clean(plans.run_folder, 3, dry_run=True)]
    output = finished_run.output_of("train", *two)
    assert "hlf-seed-2: training continues from the checkpoint of an interrupted run" in output
    repeated = in_use(plans.run_dir, "train")
    weights = Path("hlf-seed-2", "model", "weights.pt")
    assert (
        repeated.manifest.counters["further"]["hlf"]["hlf-seed-2"]["best_val_loss"]
        == further["best_val_loss"]
    )
    assert (repeated.folder / weights).is_file()
    assert "mean and spread over trainings" in finished_run.output_of("evaluate", *two)


def test_interrupted_work_of_other_settings_is_kept_named_and_continued(
    plans: Plans, finished_run: FinishedRun
) -> None:
    # As a kill leaves it: a checkpoint, no manifest.
    interrupted = plans.run_dir / "train" / "0007-0123abcd"
    shutil.copytree(version_of(plans.run_dir, "train"), interrupted)
    (interrupted / "manifest.json").unlink()
    made_from = interrupted / "hlf" / "made-from"
    # One worker: ranks take seconds to start.
    second = ["--set", "train.learning_rate=0.002", "--set", "train.workers=1"]
    finished_run.output_of("train", *second)
    assert interrupted.is_dir()
    (note,) = (line for line in lines(plan(plans.run_folder)) if str(interrupted) in line)
    assert "stays until `clean`" in note
    # These are the settings of the interrupted run: it was called one of other settings.
    assert "a run with its settings and code continues it" in note
    # The settings return: what was interrupted is continued, not begun again.
    digest = made_from.read_text(encoding="utf-8")
    assert (
        "hlf: training continues from the checkpoint of an interrupted run"
        in finished_run.output_of("train")
    )
    assert (version_of(plans.run_dir, "train") / "hlf" / "made-from").read_text(
        encoding="utf-8"
    ) == digest
    assert not interrupted.exists()
