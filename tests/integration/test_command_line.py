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


def stages_shown(plan: str) -> dict[str, str]:
    return {
        line.split()[0]: " ".join(line.split()[1:])
        for line in plan.splitlines()
        if not line.startswith(" ")
    }


def test_counters_in_the_manifests_add_up_along_the_chain(finished: FinishedRun) -> None:
    manifests = {
        stage: json.loads((finished.run_dir / stage / version / "manifest.json").read_text())
        for stage, version in versions(finished.run_dir).items()
        if version
    }
    for sample in ("qcd", "ttbar", "wjets"):
        ingested = manifests["ingest"]["counters"]["samples"][sample]
        choice = manifests["features"]["counters"]["samples"][sample]
        assert ingested["entries"] == 150
        assert (
            ingested["rejected_nonfinite"] + ingested["rejected_no_lepton"] + ingested["events"]
            == 150
        )
        assert choice["events"] == ingested["events"]
    splits = manifests["features"]["counters"]["splits"]
    selected = sum(
        counts["selected"] for counts in manifests["features"]["counters"]["samples"].values()
    )
    assert sum(map(sum, splits.values())) == selected
    assert manifests["evaluate"]["counters"]["runs"]["hlf"]["num_events"] == sum(splits["test"])
    assert manifests["evaluate"]["upstream"] == {
        name: versions(finished.run_dir)[name] for name in ("ingest", "features", "train")
    }
    for stage, manifest in manifests.items():
        assert all(check["passed"] for check in manifest["checks"]), stage
        assert {"fingerprint", "config", "packages", "code_version", "command"} <= manifest.keys()


def test_the_second_run_does_nothing_and_says_so(finished: FinishedRun) -> None:
    versions_before = versions(finished.run_dir)
    repeated = finished.output_of("run")
    for stage in STAGES:
        assert f"{stage}: up to date" in repeated
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
    displayed = stages_shown(plan)
    assert {stage for stage in STAGES if displayed[stage].startswith("stale")} == set(stale)


def test_status_tells_what_is_there(finished: FinishedRun, tmp_path: Path) -> None:
    document = json.loads(finished.output_of("status", "--json"))
    assert document.pop("gridsearch")["version"].startswith("0001-")
    assert document.pop("in_use") == {}
    assert document.pop("simulate") is None
    assert {name: version["version"] for name, version in document.items()} == versions(
        finished.run_dir
    )
    assert str(versions(finished.run_dir)["train"]) in finished.output_of("status")
    empty = ("--set", f"run_dir={tmp_path / 'empty'}")
    assert json.loads(finished.output_of("status", "--json", *empty))["gridsearch"] is None


@pytest.mark.usefixtures("no_figures")
def test_a_stage_run_on_its_own_says_that_what_it_reads_from_is_stale(
    finished: FinishedRun,
) -> None:
    note = "note: train is stale (hlf: config train.seed changed (1 -> 7)); evaluate uses its current version"
    assert note in finished.output_of("evaluate", "--set", "train.seed=7", "--force")


def test_a_missing_file_of_an_earlier_stage_is_not_called_a_full_disk(
    finished: FinishedRun,
) -> None:
    for path in finished.run_dir.glob("features/*/test/part-00001.parquet"):
        path.unlink()
    result = invoke("evaluate", "--config", finished.config, "--force")
    assert result.exit_code == Exit.USER_ERROR
    assert "part-00001.parquet" in result.stderr
    assert "is not what was written: it is gone" in result.stderr
    assert "run `python -m pipeline features` with the same options" in result.stderr
    assert "disk" not in result.stderr


@pytest.mark.usefixtures("no_figures")
def test_a_result_that_fails_its_checks_is_not_published(finished: FinishedRun) -> None:
    features = in_use(finished.run_dir, "features")
    path = features.folder / "dataset.json"
    document = json.loads(path.read_text())
    document["splits"]["test"][0]["rows"] += 1
    path.write_text(json.dumps(document))
    # As if it had been written so, of features that are those of the training.
    contents = {file.path: file.content for file in features.files}
    store = StageStore(finished.run_dir, "features")
    record_as_written(store, features)
    files = [
        file._replace(content=contents[file.path])
        for file in in_use(finished.run_dir, "features").files
    ]
    outputs = [file._asdict() for file in files]
    store.update_manifest(features, outputs=outputs)
    versions_before = versions(finished.run_dir)
    result = invoke("evaluate", "--config", finished.config, "--force")
    assert result.exit_code == Exit.USER_ERROR, result.output
    assert "failed its own checks and was not published" in result.stderr
    assert versions(finished.run_dir) == versions_before


def test_fewer_events_than_workers_is_explained_and_leaves_the_old_model(
    finished: FinishedRun,
) -> None:
    versions_before, folders = versions(finished.run_dir), version_folders(finished.run_dir)
    result = invoke("train", "--workers", "999", "--config", finished.config)
    assert result.exit_code == Exit.USER_ERROR
    assert "fewer than the 999 workers" in result.stderr
    assert "Use at most" in result.stderr
    assert "Traceback" not in result.stderr
    assert (versions(finished.run_dir), version_folders(finished.run_dir)) == (
        versions_before,
        folders,
    )
