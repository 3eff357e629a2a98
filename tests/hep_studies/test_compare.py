"""What `compare --force` removes, and every study with `compare --study all`."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from example_study import example_check, example_result, example_run, example_study
from feature_datasets import write_dataset
from published_by_hand import publish
from trained_nights import TrainedNights
from typer.testing import CliRunner

from hep_studies import compare
from hep_studies.compare import Study, _busy_cores, _remove_written, make_all
from hep_studies.plan import Subject
from hep_studies.workloads.images_settings import MnistSettings
from models.networks.hlf_settings import HlfSettings
from pipeline.cli import app
from pipeline.errors import ConfigError
from pipeline.runs import code_meaning
from pipeline.terminal import exit_codes
from pipeline.terminal.exit_codes import Exit
from training.errors import StudyError, TrainingError
from training.settings import TrainSettings
from training.workloads.hep_settings import HepSettings

WORKERS = "train.workers"


def test_only_what_a_comparison_writes_is_removed(tmp_path: Path) -> None:
    for name in ("runs/hlf", "figures", "my-notes"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("result.json", "table.json", "page.md", "runs/hlf/a", "talk.pdf", "my-notes/a"):
        (tmp_path / name).write_text("x")
    _remove_written(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my-notes", "talk.pdf"]


def test_a_study_made_just_before_does_not_make_the_machine_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = tmp_path / "timing" / "load.json"
    monkeypatch.setattr("os.getloadavg", lambda: (9.0, 9.0, 9.0))
    monkeypatch.setattr("psutil.cpu_count", lambda: 4)
    monkeypatch.setattr("psutil.cpu_percent", lambda _: 75.0)
    assert _busy_cores([], load) == 3
    monkeypatch.setattr("psutil.cpu_percent", lambda _: 0.0)
    # Of runs that are done, the number stands that was found before them.
    assert _busy_cores([], load) == 3
    # A study that is continued on a quiet machine began on a busy one.
    left: Any = [SimpleNamespace(result=None)]
    assert _busy_cores(left, load) == 3
    load.unlink()
    assert _busy_cores(left, load) == 0


@pytest.mark.parametrize(
    ("changed", "stale"),
    [
        ("training.algorithms.ad_psgd", {"simulated", "measured"}),
        ("models.networks.hlf", {"simulated", "measured"}),
        ("hep_studies.simulator.costs", {"simulated"}),
        ("training.transports.mpi", {"measured"}),
        ("hep_studies.run_in_simulator", {"simulated"}),
        # Other methods, networks, workloads, and what makes the page.
        ("training.algorithms.swarm_sgd", set()),
        ("models.networks.particles", set()),
        ("hep_studies.study", set()),
        ("hep_studies.compare", set()),
    ],
)
def test_after_a_change_of_the_code_old_numbers_stayed(
    monkeypatch: pytest.MonkeyPatch, changed: str, stale: set[str]
) -> None:
    subject = Subject(HepSettings(folder=Path("features"), network=HlfSettings()), "a")
    train = TrainSettings.model_validate({"workers": 2, "algorithm": "ad-psgd"})

    def found() -> dict[str, str]:
        compare._digest_of_code.cache_clear()
        return {
            how: compare.code_of(subject, train, how == "simulated")
            for how in ("simulated", "measured")
        }

    before, read = found(), code_meaning._read

    def other(name: str, file: Path, modified: int) -> Any:
        module = read(name, file, modified)
        return module._replace(digest="other") if name == changed else module

    monkeypatch.setattr(code_meaning, "_read", other)
    assert {how for how, digest in found().items() if digest != before[how]} == stale
    compare._digest_of_code.cache_clear()


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three studies; the first has a further name."""
    found = {name: Path(f"{name}.yaml") for name in ("a", "b", "c")} | {"a-table-1": Path("a.yaml")}
    monkeypatch.setattr("hep_studies.compare.shipped", lambda: found)
    monkeypatch.setattr(
        "hep_studies.compare.read_study", lambda name, form, _: Study(name, form, None)
    )  # type: ignore[arg-type]


@pytest.mark.usefixtures("three")
def test_all_studies_are_made_and_those_that_failed_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[tuple[str, str, str]] = []
    broken = {"a", "c"}

    def made_by(_: object, study: Study, *, command: str, **__: Any) -> Path:
        made.append((study.name, study.form, command))
        if study.name in broken:
            raise TrainingError("A rank is gone.")
        return Path("page.md")

    monkeypatch.setattr("hep_studies.compare.compare", made_by)
    done = CliRunner().invoke(app, ["compare", "--study", "all", "--config", "demo"])
    words = "python -m pipeline compare --study {} --form small --config demo"
    assert made == [(name, "small", words.format(name)) for name in ("a", "b", "c")]
    assert done.exit_code == Exit.USER_ERROR
    assert "study a failed: A rank is gone." in done.stderr
    assert "2 of 3 studies failed, as said above: a, c." in " ".join(done.stderr.split())
    broken.clear()
    assert (
        CliRunner().invoke(app, ["compare", "--study", "all", "--config", "demo"]).exit_code
        == Exit.OK
    )


@pytest.mark.usefixtures("three")
def test_an_interrupt_ends_all_studies() -> None:
    begun: list[str] = []

    def make(name: str) -> None:
        begun.append(name)
        # The handler of the signal notes it; what the interrupt breaks may raise another error first.
        exit_codes.stop_requested.set()
        raise TrainingError("The ranks were interrupted.")

    try:
        with pytest.raises(KeyboardInterrupt):
            make_all(make, begun.append)
    finally:
        exit_codes.stop_requested.clear()
    assert begun == ["compare: study a, 1 of 3", "a"]


def test_other_events_have_another_digest(tmp_path: Path) -> None:
    study = Study("made", "small", example_study(workload="hlf"))
    nights = TrainedNights(tmp_path)
    store = nights.run_folder.store("features")
    digests = []
    for seed in (1, 1, 2):
        folder = store.next_folder("ff" * 8)
        write_dataset(folder, rows={"train": [8], "val": [8], "test": [8]}, seed=seed)
        publish(nights.run_dir, "features", folder, counters={}, config=nights.config)
        digests.append(compare._subject(nights.run_folder, study)[0].data)
    assert digests[0] == digests[1] != digests[2]


def test_times_that_were_checked_again_did_not_reach_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs are done, and the result with the old check was drawn."""
    study = Study("made", "small", example_study(workload=MnistSettings()))
    again = [example_check("ad-psgd", 1.0, 0.5)]
    found = example_result(study.settings, [], checks=[example_check("ad-psgd", 1.0, 1.0)])
    replaced: dict[str, Any] = {
        "_busy_cores": lambda *_: 1.5,
        "check_times": lambda *_, **__: again,
        "planned_runs": lambda *_, **__: [],
        "read": lambda _: found,
        "digest_of_study": lambda *_: found.digest,
        "weights_of_test": lambda *_: "",
    }
    for name, function in replaced.items():
        monkeypatch.setattr(compare, name, function)
    result = compare._result(TrainedNights(tmp_path).run_folder, study, tmp_path, "compare")
    assert result.checks == again


DIRTY = "commit 1 with local changes"


@pytest.mark.parametrize(
    ("version", "made_with"), [(DIRTY, "commit 1"), ("commit 1", DIRTY), ("commit 1", "commit 1")]
)
def test_results_of_code_that_no_commit_has_were_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, made_with: str
) -> None:
    """Of the 1,080 runs of a page 604 were of commits with local changes."""
    found = example_result(example_study(), [replace(example_run("sgd", 1), made_with=made_with)])
    monkeypatch.setattr(compare, "_result", lambda *_: found)
    monkeypatch.setattr(compare, "code_version", lambda: version)
    monkeypatch.setattr(compare, "_write", lambda *_: tmp_path / "page.md")
    run_folder, study = TrainedNights(tmp_path).run_folder, Study("made", "small", example_study())
    compare.compare(run_folder, study, command="compare")
    with (
        pytest.raises(StudyError, match="with local changes")
        if DIRTY in (version, made_with)
        else nullcontext()
    ):
        compare.compare(run_folder, study, command="compare", publish=tmp_path / "docs")


def test_a_study_with_one_worker_for_what_only_several_do_is_refused_with_all_such_runs() -> None:
    """Their rows were those of the plain method, and were judged."""
    methods = {"ar-sgd": {"train": {}}, "local": {"train": {"algorithm": "local-sgd"}}}
    compare._refuse_idle(example_study(methods=methods, vary={"train.workers": [2, 4]}))
    with pytest.raises(
        ConfigError, match=r"no effect:\n  local, train.workers 1: train.algorithm: local-sgd .*\Z"
    ):
        compare._refuse_idle(example_study(methods=methods, vary={"train.workers": [1, 4]}))


STUDY = "title: A\nsource: B 2020\nminutes: 1\nreference: sgd\nmethods: {sgd: {train: {algorithm: sgd}}}\n"


MPI: dict[str, Any] = {"execution": "mpi"}
CLUSTER = {"cluster": {"step_seconds": 1}}


@pytest.mark.parametrize(
    ("of_file", "form", "changes", "name"),
    [
        ({}, "small", {}, "mine"),
        ({}, "small", MPI, "mine-mpi"),
        ({}, "full", MPI, "mine-full-mpi"),
        # Results of MPI lay in the folder of simulated ones after a change of the file.
        ({"forms": {"small": MPI}}, "small", {}, "mine-mpi"),
        ({"forms": {"small": MPI}}, "small", {"execution": "simulate"}, "mine"),
        (CLUSTER, "small", MPI, "mine-mpi"),
        ({**CLUSTER, "forms": {"small": MPI}}, "small", {}, "mine-mpi"),
        # A cluster beside MPI was accepted without effect.
        ({"forms": {"small": {**MPI, **CLUSTER}}}, "small", {}, None),
        (MPI, "small", CLUSTER, None),
    ],
    ids=str,
)
def test_a_study_by_mpi_replaced_the_page_of_its_simulation(
    tmp_path: Path, of_file: dict[str, Any], form: str, changes: dict[str, Any], name: str | None
) -> None:
    """So did the full form that of the small one."""
    path = tmp_path / "mine.yaml"
    path.write_text(
        STUDY + "".join(f"{key}: {json.dumps(value)}\n" for key, value in of_file.items())
    )
    with nullcontext() if name else pytest.raises(ConfigError, match="cluster has no effect"):
        assert compare.read_study(str(path), form, changes).name == name


def test_the_terminal_shows_every_measure_of_the_study() -> None:
    """It showed the first of three."""
    tables = [
        {"title": "T", "measures": ["seconds", "diverged"]},
        {"title": "U", "measures": ["staleness"], "over": WORKERS},
    ]
    study = example_study(tables=tables, vary={WORKERS: [2]})
    result = example_result(
        study, [example_run("sgd", 1), example_run("ar-sgd", 1, values={WORKERS: 2})]
    )
    assert compare.table_of(result).rows[0] == ("method", "test_accuracy", "seconds", "diverged")
