"""`predict`: scores of ROOT files without labels, of a finished run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import uproot
from command_line import SAMPLES, version_of
from delphes_files import write_delphes
from event_rows import event_row, lepton, tower
from finished_run import FinishedRun
from lent_spark import command
from numpy.typing import NDArray
from prediction_trees import keys_of, probabilities, uuid_of

from features.matrices import required_columns
from hep_core.integrity import with_seal
from models.errors import ModelError
from models.networks.registry import settings_of
from models.networks.scaling_layer import Scaler
from models.saved_model import ModelSpec, build, save_model
from pipeline import scoring
from pipeline.machine.spark_session import SparkProvider
from pipeline.scoring import FLAGS, load_classifier
from pipeline.terminal.exit_codes import Exit

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(900)]

FILE = SAMPLES / "ttbar_13TeV_PU20_0.root"


class Finished:
    def __init__(self, provider: SparkProvider, folder: Path, finished_run: FinishedRun) -> None:
        self.provider = provider
        self.config = finished_run.copy(folder)
        self.run_dir = folder / "run"
        self.model = self.current("train") / "hlf"
        self.exported = self.current("export") / "hlf" / "model.onnx"
        self.evaluated = pq.read_table(
            self.current("evaluate") / "hlf" / "predictions.parquet"
        ).to_pandas()

    def current(self, stage: str) -> Path:
        return version_of(self.run_dir, stage)

    def predict(self, *arguments: str | Path) -> Any:
        return command(self.provider, "predict", "--set", f"run_dir={self.run_dir}", *arguments)

    def scores(
        self, out: Path, *files: str | Path, model: Path | None = None
    ) -> dict[str, pa.Table]:
        """The tables of files by their stems, by default of the trained network."""
        result = self.predict(*files, "--model", model or self.model, "--out", out, "--parquet")
        assert result.exit_code == Exit.OK, result.stderr
        return {
            path.name.removesuffix(".scores.parquet"): pq.read_table(path) for path in out.iterdir()
        }


@pytest.fixture(scope="module")
def finished(
    provider: SparkProvider, finished_run: FinishedRun, tmp_path_factory: pytest.TempPathFactory
) -> Finished:
    return Finished(provider, tmp_path_factory.mktemp("finished"), finished_run)


def check_rows(table: Any, entries: int) -> None:
    """Each entry has a row in its order, and scores or the reason why it has none."""
    flag, scores = np.asarray(table["flag"]), probabilities(table)
    assert np.asarray(table["entry"]).tolist() == list(range(entries))
    assert np.isfinite(scores).all(axis=1).tolist() == (flag == 0).tolist()
    assert np.isnan(scores[flag != 0]).all()
    assert scores[flag == 0].sum(axis=1) == pytest.approx(1, abs=1e-5)
    assert (
        np.asarray(table["predicted"])[flag == 0].tolist()
        == scores[flag == 0].argmax(axis=1).tolist()
    )
    assert (np.asarray(table["predicted"])[flag != 0] == -1).all()


def test_several_files_get_the_scores_of_the_evaluation_entry_by_entry(
    finished: Finished, tmp_path: Path
) -> None:
    files = sorted(SAMPLES.glob("*_0.root"))
    result = finished.predict(
        SAMPLES / "*_0.root", "--model", finished.model, "--out", tmp_path / "out", "--parquet"
    )
    assert result.exit_code == Exit.OK, result.stderr
    compared = 0
    for file in files:
        found = pq.read_table(tmp_path / "out" / f"{file.stem}.scores.parquet")
        events = finished.evaluated[finished.evaluated.file_uuid == uuid_of(file)]
        check_rows(found, 150)
        assert json.loads(found.schema.metadata[b"flags"]) == list(FLAGS)
        scores = probabilities(found)[events.entry]
        assert scores == pytest.approx(probabilities(events), abs=1e-6)
        compared += len(events)
        scored = np.count_nonzero(found["flag"].to_numpy() == 0)
        assert (
            f"{file.stem}.scores.parquet: {scored} of {len(found)} events have scores ("
            in result.stdout
        )
    assert compared == len(finished.evaluated) > 30


def test_a_friend_tree_joins_its_file_by_the_entry_and_keeps_branches(
    finished: Finished, tmp_path: Path
) -> None:
    result = finished.predict(
        FILE, "--model", finished.exported, "--out", tmp_path / "out", "--keep", "Event.Number"
    )
    assert result.exit_code == Exit.OK, result.stderr
    with (
        uproot.open(tmp_path / "out" / f"{FILE.stem}.scores.root") as root,
        uproot.open(FILE) as events,
    ):
        tree = root["predictions"]
        assert json.loads(tree.title) == {
            "classes": ["QCD", "ttbar", "W+jets"],
            "flags": list(FLAGS),
        }
        found = tree.arrays(library="np")
        check_rows(found, events["Delphes"].num_entries)
        index = ak.flatten(events["Delphes/Event/Event.Number"].array())
        assert found["Event.Number"].tolist() == index.tolist()


def test_without_a_model_the_one_in_use_scores(finished: Finished, tmp_path: Path) -> None:
    promoted = command(finished.provider, "promote", "--config", finished.config)
    assert promoted.exit_code == Exit.OK, promoted.stderr
    result = command(
        finished.provider,
        "predict",
        FILE,
        "--config",
        finished.config,
        "--out",
        tmp_path / "used",
        "--parquet",
    )
    assert result.exit_code == Exit.OK, result.stderr
    used = pq.read_table(tmp_path / "used" / f"{FILE.stem}.scores.parquet")
    named = finished.scores(tmp_path / "named", FILE)[FILE.stem]
    np.testing.assert_array_equal(probabilities(used), probabilities(named))
    second = command(
        finished.provider,
        "predict",
        FILE,
        "--config",
        finished.config,
        "--out",
        tmp_path / "no",
        "--network",
        "hfl",
    )
    assert second.exit_code == Exit.USAGE
    assert "Did you mean 'hlf'?" in second.stderr


def test_scores_of_training_events_come_with_a_warning(finished: Finished, tmp_path: Path) -> None:
    """`predict` said nothing where the model had learnt from the files; also a copy of the run knows them."""
    splits = [
        pq.ParquetDataset(finished.current("features") / name).read() for name in ("train", "val")
    ]
    expected = sum(table["file_uuid"].to_pylist().count(uuid_of(FILE)) for table in splits)
    new = write_delphes(tmp_path / "new.root", [event_row()])
    for index, model in enumerate((finished.model, finished.exported)):
        out = tmp_path / str(index)
        result = finished.predict(FILE, new, "--model", model, "--out", out)
        assert f"hlf was trained on {expected} events of these files" in " ".join(
            result.stderr.split()
        )
        assert expected > 20
        result = finished.predict(new, "--model", model, "--out", out / "new")
        assert "was trained on" not in result.stdout + result.stderr


def test_entries_say_why_they_have_no_score(finished: Finished, tmp_path: Path) -> None:
    isolated = event_row(electrons=[lepton(40.0, 0.5, 0.5)])
    soft = event_row(electrons=[lepton(5.0, 0.5, 0.5)])
    crowded = event_row(electrons=[lepton(40.0, 0.5, 0.5)], photons=[tower(40.0, 0.6, 0.5)])
    broken = event_row(electrons=[lepton(40.0, 0.5, 0.5)], met=float("nan"))
    file = write_delphes(tmp_path / "events.root", [soft, isolated, broken, crowded])
    actual = finished.scores(tmp_path / "out", file)["events"]
    check_rows(actual, 4)
    flags = ["rejected_no_lepton", "scored", "rejected_nonfinite", "rejected_no_isolated_lepton"]
    assert [FLAGS[flag] for flag in actual["flag"].to_pylist()] == flags


def test_what_cannot_be_is_refused_before_any_work_and_leaves_nothing(
    finished: Finished, tmp_path: Path
) -> None:
    lacking = write_delphes(tmp_path / "lacking.root", [event_row()], without=["MissingET.MET"])
    (tmp_path / "there").mkdir()
    files_before = sorted(tmp_path.iterdir())
    out = ("--out", tmp_path / "out")
    model = ("--model", finished.model)
    for arguments, message in {
        (FILE, *model, *out, "--keep", "flag"): "flag is a column of the scores themselves",
        (lacking, *model, *out): "MissingET.MET",
        (FILE, *model, *out, "--keep", "Event.Nummer"): "Event.Number",
        (FILE, FILE, *model, *out): "is listed twice",
        (FILE, *model, "--out", tmp_path / "there"): "exists already",
        (FILE, *out, "--set", f"run_dir={tmp_path / 'other'}"): "no model is in use",
        (FILE, "--model", tmp_path / "none", *out): "there is no",
    }.items():
        result = finished.predict(*arguments)
        assert result.exit_code == (Exit.USAGE if "flag" in arguments else Exit.USER_ERROR), (
            message,
            result.stderr,
        )
        assert message in result.stderr
        assert "Traceback" not in result.stderr
    assert sorted(tmp_path.iterdir()) == files_before


def test_branches_and_selection_are_those_of_the_training(
    finished: Finished, tmp_path: Path
) -> None:
    model = tmp_path / "renamed"
    shutil.copytree(finished.model, model)
    document = json.loads((model / "model" / "model.json").read_text())
    document["reading"] |= {
        "tree": "Events",
        "branch_map": {"met": "MET_pt"},
        "min_lepton_pt": 60.0,
    }
    (model / "model" / "model.json").write_text(json.dumps(with_seal(document)))
    events = [event_row(electrons=[lepton(pt, 0.5, 0.5)], tracks=[]) for pt in (70.0, 50.0)]
    file = write_delphes(
        tmp_path / "events.root", events, tree="Events", rename={"MissingET.MET": "MET_pt"}
    )
    actual = finished.scores(tmp_path / "out", file, model=model)["events"]
    assert [FLAGS[flag] for flag in actual["flag"].to_pylist()] == ["scored", "rejected_no_lepton"]


def test_a_model_of_an_earlier_release_is_refused(finished: Finished, tmp_path: Path) -> None:
    shutil.copytree(finished.model, tmp_path / "old")
    path = tmp_path / "old" / "model" / "model.json"
    document = json.loads(path.read_text())
    del document["reading"]
    path.write_text(json.dumps(with_seal(document)))
    with pytest.raises(ModelError, match="does not say how the events"):
        load_classifier(tmp_path / "old")


def test_a_damaged_model_marks_no_event_as_scored(finished: Finished, tmp_path: Path) -> None:
    classifier = load_classifier(finished.model)
    for weights in classifier.model.parameters():  # type: ignore[attr-defined]
        weights.data.fill_(float("nan"))
    for events in (
        pq.read_table(next(finished.current("ingest").glob("events/*.parquet"))),
        features_of(finished),
    ):
        with pytest.raises(ModelError, match="probabilities that are not"):
            classifier.scores(events)


def test_files_of_the_same_name_are_scored_into_different_files(
    finished: Finished, tmp_path: Path
) -> None:
    """The second `a.root` was named like the scores of `a-2.root`."""
    events = [event_row(electrons=[lepton(40.0, 0.5, 0.5)], tracks=[])]
    files = []
    for index, name in enumerate(("x/a.root", "x/a-2.root", "y/a.root"), start=1):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        files.append(write_delphes(tmp_path / name, events * index))
    rows = {name: len(table) for name, table in finished.scores(tmp_path / "out", *files).items()}
    assert sorted(rows.values()) == [1, 2, 3]
    assert rows["a-3"] == 3


def features_of(finished: Finished) -> pa.Table:
    return pa.concat_tables(
        pq.read_table(path) for path in sorted(finished.current("features").glob("test/*.parquet"))
    )


def in_order(table: pa.Table, evaluated: Any) -> NDArray[np.float32]:
    """The scores of the evaluation for the rows of a table."""
    keyed = evaluated.set_index(["file_uuid", "entry"])
    return probabilities(keyed.loc[keys_of(table)])


def test_a_notebook_gets_scores_of_arrow_pandas_and_awkward_events(finished: Finished) -> None:
    table = features_of(finished)
    classifier = load_classifier(finished.exported)
    needed = table.select(required_columns(classifier.model.inputs))
    forms: Sequence[Any] = (table, needed, needed.to_pandas(), ak.from_arrow(needed))
    for events in forms:
        assert classifier.scores(events) == pytest.approx(
            in_order(table, finished.evaluated), abs=1e-6
        )


def test_features_of_another_selection_are_refused(finished: Finished) -> None:
    """The features of our datasets, and of `features_of`, say what they were made with; other tables say nothing."""
    path = next(finished.current("features").glob("test/*.parquet"))
    table, classifier = pq.read_table(path), load_classifier(finished.exported)
    events = pq.read_table(next(finished.current("ingest").glob("events/*.parquet")))
    reading = classifier.reading.model_copy(update={"min_track_pt": 0.7})
    second = classifier.selection.model_copy(update={"isolation_cone": 0.4})
    for features, changed, message in (
        (table, classifier._replace(reading=reading), "ingest.min_track_pt 0.7 instead of 0.5"),
        (
            table,
            classifier._replace(selection=second),
            "features.isolation_cone 0.4 instead of 0.3",
        ),
        (
            scoring.features_of(events, second),
            classifier,
            "features.isolation_cone 0.3 instead of 0.4",
        ),
    ):
        with pytest.raises(ModelError, match=message):
            changed.scores(features)
        plain = features.replace_schema_metadata(None)
        assert (changed.scores(plain) == classifier.scores(plain)).all()
    loose = classifier.selection.model_copy(update={"rows_per_group": 7})
    assert classifier.scores(scoring.features_of(events, loose)).shape[1] == 3


def test_lists_of_particles_have_the_same_scores_from_files_and_from_features(
    finished: Finished, tmp_path: Path, provider: SparkProvider
) -> None:
    """A network of particles with any weights: what counts is that it gets the same lists."""
    trained = json.loads((finished.model / "model" / "model.json").read_text())
    document = json.loads((finished.current("features") / "scaler.json").read_text())
    scalers = {name: Scaler.from_json(document[name]) for name in ("hlf", "particles")}
    spec = ModelSpec(
        settings_of({"name": "inclusive"}),
        trained["classes"],
        scalers,
        trained["definitions"],
        trained["reading"],
    )
    save_model(build(spec), spec, tmp_path / "model")
    classifier = load_classifier(tmp_path)
    table = features_of(finished)
    by_key = {}
    for stem, actual in finished.scores(
        tmp_path / "out", SAMPLES / "*_0.root", model=tmp_path
    ).items():
        uuid = uuid_of(SAMPLES / f"{stem}.root")
        by_key |= {(uuid, entry): row for entry, row in enumerate(probabilities(actual))}
    assert classifier.scores(table) == pytest.approx(
        np.array([by_key[key] for key in keys_of(table)]), abs=1e-6
    )
