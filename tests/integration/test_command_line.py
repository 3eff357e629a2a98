"""The command line from ROOT files to the report: what runs again and why; bad input:
`test_bad_input.py`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import STAGES, in_use, invoke, version_folders, versions
from finished_run import FinishedRun
from published_by_hand import record_as_written

from pipeline.runs.store import StageStore
from pipeline.terminal.exit_codes import Exit

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(900)]


@pytest.fixture
def finished(finished_run: FinishedRun) -> FinishedRun:
    finished_run.restore()
    return finished_run


def stale_stages(plan: str) -> set[str]:
    """The stages that a printed plan calls stale."""
    stages = set()
    for line in plan.splitlines():
        if not line.startswith(" ") and " stale " in line:
            stages.add(line.split()[0])
    return stages


def test_counters_in_the_manifests_add_up_along_the_chain(finished: FinishedRun) -> None:
    manifests = {
        stage: json.loads((in_use(finished.run_dir, stage).folder / "manifest.json").read_text())
        for stage in STAGES
    }
    counters = {stage: manifest["counters"] for stage, manifest in manifests.items()}

    num_selected = 0
    for sample in ("qcd", "ttbar", "wjets"):
        ingested = counters["ingest"]["samples"][sample]
        selected = counters["features"]["samples"][sample]
        num_rejected = ingested["rejected_nonfinite"] + ingested["rejected_no_lepton"]
        assert ingested["entries"] == num_rejected + ingested["events"] == 150
        assert selected["events"] == ingested["events"]
        num_selected += selected["selected"]
    split_counts = counters["features"]["splits"]
    assert sum(map(sum, split_counts.values())) == num_selected
    num_evaluated = counters["evaluate"]["runs"]["hlf"]["num_events"]
    assert num_evaluated == sum(split_counts["test"])


def test_each_manifest_names_its_inputs_code_and_passed_checks(finished: FinishedRun) -> None:
    current = versions(finished.run_dir)
    read_by_evaluate = {stage: current[stage] for stage in ("ingest", "features", "train")}

    for stage in STAGES:
        path = in_use(finished.run_dir, stage).folder / "manifest.json"
        manifest = json.loads(path.read_text())
        assert {"fingerprint", "config", "packages", "code_version", "command"} <= manifest.keys()
        assert all(check["passed"] for check in manifest["checks"]), stage
        if stage == "evaluate":
            assert manifest["upstream"] == read_by_evaluate


def test_a_second_run_finds_all_stages_up_to_date(finished: FinishedRun) -> None:
    versions_before = versions(finished.run_dir)

    output = finished.output_of("run")

    for stage in STAGES:
        assert f"{stage}: up to date" in output
    assert versions(finished.run_dir) == versions_before


@pytest.mark.parametrize(
    ("change", "reason", "stale"),
    [
        (
            "features.isolation_cone=0.4",
            "config features.isolation_cone changed (0.3 -> 0.4)",
            STAGES[1:],
        ),
        ("train.seed=5", "config train.seed changed (1 -> 5)", STAGES[2:]),
        (
            "evaluate.train_events=9",
            "config evaluate.train_events changed (20000 -> 9)",
            STAGES[3:],
        ),
        ("report.energy_tev=14", "config report.energy_tev changed (None -> 14.0)", STAGES[3:]),
        ("ingest.entries_per_task=7", "", ()),
    ],
)
def test_a_changed_key_makes_only_its_dependents_stale(
    finished: FinishedRun, change: str, reason: str, stale: tuple[str, ...]
) -> None:
    plan = finished.output_of("plan", "--set", change)

    assert reason in plan
    assert stale_stages(plan) & set(STAGES) == set(stale)


def test_status_names_the_versions_in_use(finished: FinishedRun, tmp_path: Path) -> None:
    current = versions(finished.run_dir)
    empty_run = ("--set", f"run_dir={tmp_path / 'empty'}")

    status = json.loads(finished.output_of("status", "--json"))
    text = finished.output_of("status")
    status_of_empty_run = json.loads(finished.output_of("status", "--json", *empty_run))

    assert {stage: status[stage]["version"] for stage in STAGES} == current
    assert status["gridsearch"]["version"].startswith("0001-")
    assert status["in_use"] == {}
    assert status["simulate"] is None
    assert str(current["train"]) in text
    assert status_of_empty_run["gridsearch"] is None


@pytest.mark.usefixtures("no_figures")
def test_a_stage_run_alone_notes_that_its_input_is_stale(finished: FinishedRun) -> None:
    output = finished.output_of("evaluate", "--set", "train.seed=7", "--force")

    reason = "hlf: config train.seed changed (1 -> 7)"
    assert f"note: train is stale ({reason}); evaluate uses its current version" in output


def test_a_missing_file_of_an_earlier_stage_is_named_with_the_repair(
    finished: FinishedRun,
) -> None:
    for path in finished.run_dir.glob("features/*/test/part-00001.parquet"):
        path.unlink()

    result = invoke("evaluate", "--config", finished.config, "--force")

    assert result.exit_code == Exit.USER_ERROR
    assert "part-00001.parquet" in result.stderr
    assert "is not what was written: it is gone" in result.stderr
    assert "run `python -m pipeline features` with the same options" in result.stderr
    # It was once taken for a full disk.
    assert "disk" not in result.stderr


@pytest.mark.usefixtures("no_figures")
def test_a_result_that_fails_its_checks_is_not_published(finished: FinishedRun) -> None:
    features = in_use(finished.run_dir, "features")
    dataset_path = features.folder / "dataset.json"
    dataset = json.loads(dataset_path.read_text())
    dataset["splits"]["test"][0]["rows"] += 1
    dataset_path.write_text(json.dumps(dataset))
    # As if it had been written so, of features that are those of the training.
    store = StageStore(finished.run_dir, "features")
    record_as_written(store, features)
    content_digests = {file.path: file.content for file in features.files}
    files = [
        file._replace(content=content_digests[file.path])
        for file in in_use(finished.run_dir, "features").files
    ]
    store.update_manifest(features, outputs=[file._asdict() for file in files])
    versions_before = versions(finished.run_dir)

    result = invoke("evaluate", "--config", finished.config, "--force")

    assert result.exit_code == Exit.USER_ERROR, result.output
    assert "failed its own checks and was not published" in result.stderr
    assert versions(finished.run_dir) == versions_before


def test_fewer_events_than_workers_is_explained_and_leaves_the_old_model(
    finished: FinishedRun,
) -> None:
    versions_before = versions(finished.run_dir)
    folders_before = version_folders(finished.run_dir)

    result = invoke("train", "--workers", "999", "--config", finished.config)

    assert result.exit_code == Exit.USER_ERROR
    assert "fewer than the 999 workers" in result.stderr
    assert "Use at most" in result.stderr
    assert "Traceback" not in result.stderr
    assert versions(finished.run_dir) == versions_before
    assert version_folders(finished.run_dir) == folders_before
