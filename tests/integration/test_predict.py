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
#: The first file of each sample, on which the finished run was made.
FILES = sorted(SAMPLES.glob("*_0.root"))
SELECTED = event_row(electrons=[lepton(40.0, 0.5, 0.5)])


class ScoredRun:
    """A copy of the finished run, whose models score files."""

    def __init__(self, provider: SparkProvider, folder: Path, finished_run: FinishedRun) -> None:
        self.provider = provider
        self.config = finished_run.copy(folder)
        self.run_dir = folder / "run"
        self.model = self.current("train") / "hlf"
        self.exported = self.current("export") / "hlf" / "model.onnx"
        predictions = self.current("evaluate") / "hlf" / "predictions.parquet"
        self.evaluated = pq.read_table(predictions).to_pandas()

    def current(self, stage: str) -> Path:
        return version_of(self.run_dir, stage)

    def events(self) -> pa.Table:
        """The events of one file of `ingest`."""
        return pq.read_table(next(self.current("ingest").glob("events/*.parquet")))

    def features(self) -> pa.Table:
        """The features of the test split."""
        files = sorted(self.current("features").glob("test/*.parquet"))
        return pa.concat_tables(pq.read_table(path) for path in files)

    def predict(self, *arguments: str | Path) -> Any:
        """The result of the command `predict` in the run folder."""
        return command(self.provider, "predict", "--set", f"run_dir={self.run_dir}", *arguments)

    def scores(
        self, out: Path, *files: str | Path, model: Path | None = None
    ) -> dict[str, pa.Table]:
        """The scores of files by their stems, by default of the trained network."""
        if model is None:
            model = self.model
        result = self.predict(*files, "--model", model, "--out", out, "--parquet")
        assert result.exit_code == Exit.OK, result.stderr
        suffix = ".scores.parquet"
        return {path.name.removesuffix(suffix): pq.read_table(path) for path in out.iterdir()}


@pytest.fixture(scope="module")
def run(
    provider: SparkProvider, finished_run: FinishedRun, tmp_path_factory: pytest.TempPathFactory
) -> ScoredRun:
    return ScoredRun(provider, tmp_path_factory.mktemp("finished"), finished_run)


def check_rows(table: Any, num_entries: int) -> None:
    """Each entry has a row in its order, and scores or the reason why it has none."""
    scores = probabilities(table)
    predicted = np.asarray(table["predicted"])
    is_scored = np.asarray(table["flag"]) == 0

    assert np.asarray(table["entry"]).tolist() == list(range(num_entries))
    assert np.isfinite(scores[is_scored]).all()
    assert np.isnan(scores[~is_scored]).all()
    assert scores[is_scored].sum(axis=1) == pytest.approx(1, abs=1e-5)
    np.testing.assert_array_equal(predicted[is_scored], scores[is_scored].argmax(axis=1))
    assert (predicted[~is_scored] == -1).all()


def flag_names(table: pa.Table) -> list[str]:
    return [FLAGS[flag] for flag in table["flag"].to_pylist()]


def test_files_get_the_scores_of_the_evaluation_entry_by_entry(
    run: ScoredRun, tmp_path: Path
) -> None:
    out = tmp_path / "out"

    result = run.predict(SAMPLES / "*_0.root", "--model", run.model, "--out", out, "--parquet")

    assert result.exit_code == Exit.OK, result.stderr
    num_compared = 0
    for file in FILES:
        table = pq.read_table(out / f"{file.stem}.scores.parquet")
        check_rows(table, 150)
        assert json.loads(table.schema.metadata[b"flags"]) == list(FLAGS)
        num_scored = table["flag"].to_pylist().count(0)
        message = f"{file.stem}.scores.parquet: {num_scored} of {len(table)} events have scores ("
        assert message in result.stdout
        evaluated = run.evaluated[run.evaluated.file_uuid == uuid_of(file)]
        scores = probabilities(table)[evaluated.entry]
        assert scores == pytest.approx(probabilities(evaluated), abs=1e-6)
        num_compared += len(evaluated)
    assert num_compared == len(run.evaluated) > 30


def test_a_friend_tree_joins_its_file_by_the_entry_and_keeps_branches(
    run: ScoredRun, tmp_path: Path
) -> None:
    out = tmp_path / "out"

    result = run.predict(FILE, "--model", run.exported, "--out", out, "--keep", "Event.Number")

    assert result.exit_code == Exit.OK, result.stderr
    with uproot.open({FILE: "Delphes"}) as events:
        num_entries = events.num_entries
        event_numbers = ak.flatten(events["Event/Event.Number"].array())
    with uproot.open({out / f"{FILE.stem}.scores.root": "predictions"}) as tree:
        description = json.loads(tree.title)
        columns = tree.arrays(library="np")
    assert description == {"classes": ["QCD", "ttbar", "W+jets"], "flags": list(FLAGS)}
    check_rows(columns, num_entries)
    assert columns["Event.Number"].tolist() == event_numbers.tolist()


def test_the_promoted_model_scores_by_default(run: ScoredRun, tmp_path: Path) -> None:
    promoted = command(run.provider, "promote", "--config", run.config)
    assert promoted.exit_code == Exit.OK, promoted.stderr

    out = tmp_path / "promoted"
    arguments = ("predict", FILE, "--config", run.config, "--out")
    result = command(run.provider, *arguments, out, "--parquet")
    misspelt = command(run.provider, *arguments, tmp_path / "no", "--network", "hfl")

    assert result.exit_code == Exit.OK, result.stderr
    by_promoted = pq.read_table(out / f"{FILE.stem}.scores.parquet")
    by_trained = run.scores(tmp_path / "trained", FILE)[FILE.stem]
    np.testing.assert_array_equal(probabilities(by_promoted), probabilities(by_trained))
    assert misspelt.exit_code == Exit.USAGE
    assert "Did you mean 'hlf'?" in misspelt.stderr


@pytest.mark.parametrize("model", ["model", "exported"])
def test_scores_of_training_events_come_with_a_warning(
    run: ScoredRun, tmp_path: Path, model: str
) -> None:
    model_path = getattr(run, model)
    new_file = write_delphes(tmp_path / "new.root", [event_row()])
    splits = [pq.ParquetDataset(run.current("features") / split) for split in ("train", "val")]
    uuids = [uuid for split in splits for uuid in split.read()["file_uuid"].to_pylist()]
    num_known = uuids.count(uuid_of(FILE))
    assert num_known > 20

    with_known = run.predict(FILE, new_file, "--model", model_path, "--out", tmp_path / "known")
    only_new = run.predict(new_file, "--model", model_path, "--out", tmp_path / "unknown")

    warning = f"hlf was trained on {num_known} events of these files"
    assert warning in " ".join(with_known.stderr.split())
    assert "was trained on" not in only_new.stdout + only_new.stderr


def test_entries_say_why_they_have_no_score(run: ScoredRun, tmp_path: Path) -> None:
    soft = event_row(electrons=[lepton(5.0, 0.5, 0.5)])
    not_finite = SELECTED | {"met": float("nan")}
    not_isolated = SELECTED | {"photons": [tower(40.0, 0.6, 0.5)]}
    events = [soft, SELECTED, not_finite, not_isolated]
    file = write_delphes(tmp_path / "events.root", events)

    table = run.scores(tmp_path / "out", file)["events"]

    check_rows(table, 4)
    assert flag_names(table) == [
        "rejected_no_lepton",
        "scored",
        "rejected_nonfinite",
        "rejected_no_isolated_lepton",
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["{file}", "--model", "{model}", "--out", "{tmp}/out", "--keep", "flag"],
            Exit.USAGE,
            "flag is a column of the scores themselves",
        ),
        (
            ["{tmp}/lacking.root", "--model", "{model}", "--out", "{tmp}/out"],
            Exit.USER_ERROR,
            "MissingET.MET",
        ),
        (
            ["{file}", "--model", "{model}", "--out", "{tmp}/out", "--keep", "Event.Nummer"],
            Exit.USER_ERROR,
            "Event.Number",
        ),
        (
            ["{file}", "{file}", "--model", "{model}", "--out", "{tmp}/out"],
            Exit.USER_ERROR,
            "is listed twice",
        ),
        (
            ["{file}", "--model", "{model}", "--out", "{tmp}/there"],
            Exit.USER_ERROR,
            "exists already",
        ),
        (
            ["{file}", "--out", "{tmp}/out", "--set", "run_dir={tmp}/other"],
            Exit.USER_ERROR,
            "no model is in use",
        ),
        (
            ["{file}", "--model", "{tmp}/none", "--out", "{tmp}/out"],
            Exit.USER_ERROR,
            "there is no",
        ),
    ],
)
def test_impossible_predictions_are_refused_before_any_work_and_leave_nothing(
    run: ScoredRun, tmp_path: Path, arguments: list[str], code: Exit, message: str
) -> None:
    write_delphes(tmp_path / "lacking.root", [event_row()], without=["MissingET.MET"])
    (tmp_path / "there").mkdir()
    files_before = sorted(tmp_path.iterdir())
    paths = {"file": FILE, "model": run.model, "tmp": tmp_path}

    result = run.predict(*[argument.format(**paths) for argument in arguments])

    assert result.exit_code == code, result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(tmp_path.iterdir()) == files_before


def rewrite_model(model: Path, **changes: Any) -> None:
    """Change keys of the description of a saved model; None removes one."""
    path = model / "model" / "model.json"
    description = json.loads(path.read_text()) | changes
    description = {key: value for key, value in description.items() if value is not None}
    path.write_text(json.dumps(with_seal(description)))


def test_branches_and_selection_are_those_of_the_training(run: ScoredRun, tmp_path: Path) -> None:
    model = shutil.copytree(run.model, tmp_path / "renamed")
    reading = json.loads((model / "model" / "model.json").read_text())["reading"]
    renamed = {"tree": "Events", "branch_map": {"met": "MET_pt"}, "min_lepton_pt": 60.0}
    rewrite_model(model, reading=reading | renamed)
    events = [event_row(electrons=[lepton(pt, 0.5, 0.5)]) for pt in (70.0, 50.0)]
    file = write_delphes(
        tmp_path / "events.root", events, tree="Events", rename={"MissingET.MET": "MET_pt"}
    )

    table = run.scores(tmp_path / "out", file, model=model)["events"]

    assert flag_names(table) == ["scored", "rejected_no_lepton"]


def test_a_model_of_an_earlier_release_is_refused(run: ScoredRun, tmp_path: Path) -> None:
    model = shutil.copytree(run.model, tmp_path / "old")
    rewrite_model(model, reading=None)

    with pytest.raises(ModelError, match="does not say how the events"):
        load_classifier(model)


def test_a_damaged_model_marks_no_event_as_scored(run: ScoredRun) -> None:
    classifier = load_classifier(run.model)
    for weights in classifier.model.parameters():  # type: ignore[attr-defined]
        weights.data.fill_(float("nan"))

    for events in (run.events(), run.features()):
        with pytest.raises(ModelError, match="probabilities that are not"):
            classifier.scores(events)


def test_files_of_the_same_name_are_scored_into_different_files(
    run: ScoredRun, tmp_path: Path
) -> None:
    """The scores of the second `a.root` could take the name of those of `a-2.root`."""
    files = []
    for num_events, name in enumerate(("x/a.root", "x/a-2.root", "y/a.root"), start=1):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        files.append(write_delphes(tmp_path / name, [SELECTED] * num_events))

    tables = run.scores(tmp_path / "out", *files)

    assert sorted(len(table) for table in tables.values()) == [1, 2, 3]
    assert len(tables["a-3"]) == 3


def test_a_notebook_gets_scores_of_arrow_pandas_and_awkward_events(run: ScoredRun) -> None:
    classifier = load_classifier(run.exported)
    features = run.features()
    needed = features.select(required_columns(classifier.model.inputs))
    evaluated = run.evaluated.set_index(["file_uuid", "entry"]).loc[keys_of(features)]

    forms: Sequence[Any] = (features, needed, needed.to_pandas(), ak.from_arrow(needed))
    for events in forms:
        scores = classifier.scores(events)
        assert scores == pytest.approx(probabilities(evaluated), abs=1e-6)


def test_features_of_another_selection_are_refused(run: ScoredRun) -> None:
    """Our features name the settings that made them; a table without metadata is taken as it is."""
    features = pq.read_table(next(run.current("features").glob("test/*.parquet")))
    classifier = load_classifier(run.exported)
    wide_cone = classifier.selection.model_copy(update={"isolation_cone": 0.4})
    hard_tracks = classifier.reading.model_copy(update={"min_track_pt": 0.7})
    features_of_wide_cone = scoring.features_of(run.events(), wide_cone)

    for other_classifier, other_features, message in (
        (
            classifier._replace(reading=hard_tracks),
            features,
            "ingest.min_track_pt 0.7 instead of 0.5",
        ),
        (
            classifier._replace(selection=wide_cone),
            features,
            "features.isolation_cone 0.4 instead of 0.3",
        ),
        (classifier, features_of_wide_cone, "features.isolation_cone 0.3 instead of 0.4"),
    ):
        with pytest.raises(ModelError, match=message):
            other_classifier.scores(other_features)
        plain = other_features.replace_schema_metadata(None)
        np.testing.assert_array_equal(other_classifier.scores(plain), classifier.scores(plain))


def test_features_of_another_layout_of_files_are_scored(run: ScoredRun) -> None:
    classifier = load_classifier(run.exported)
    small_groups = classifier.selection.model_copy(update={"rows_per_group": 7})

    scores = classifier.scores(scoring.features_of(run.events(), small_groups))

    assert scores.shape[1] == 3


def test_lists_of_particles_have_the_same_scores_from_files_and_from_features(
    run: ScoredRun, tmp_path: Path
) -> None:
    """A network of particles with any weights: what counts is that it gets the same lists."""
    trained = json.loads((run.model / "model" / "model.json").read_text())
    scaler_document = json.loads((run.current("features") / "scaler.json").read_text())
    spec = ModelSpec(
        settings_of({"name": "inclusive"}),
        trained["classes"],
        {name: Scaler.from_json(scaler_document[name]) for name in ("hlf", "particles")},
        trained["definitions"],
        trained["reading"],
    )
    save_model(build(spec), spec, tmp_path / "model")
    features = run.features()

    scores_of_features = load_classifier(tmp_path).scores(features)
    tables = run.scores(tmp_path / "out", SAMPLES / "*_0.root", model=tmp_path)

    scores_of_files = {}
    for file in FILES:
        uuid = uuid_of(file)
        for entry, scores in enumerate(probabilities(tables[file.stem])):
            scores_of_files[uuid, entry] = scores
    expected = np.array([scores_of_files[key] for key in keys_of(features)])
    assert scores_of_features == pytest.approx(expected, abs=1e-6)
