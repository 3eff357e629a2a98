"""`evaluate-files`: new ROOT files and other models, beside a run over the first file of each
sample."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import uproot
from command_line import SAMPLES, small_config, version_of
from delphes_files import write_delphes
from event_rows import distinct, event_row, lepton, track
from finished_run import FinishedRun
from lent_spark import command
from numpy.typing import NDArray
from prediction_trees import features_by_event, keys_of, probabilities, strict_json, uuid_of
from sliced_qcd import THINNED, write_slices

from features.schema import SPLITS
from ingestion.known_layouts import LAYOUTS, BranchLayout
from models.saved_model import load_model
from pipeline.machine.spark_session import SparkProvider
from pipeline.runs.manifest import sealed_manifest
from pipeline.terminal.exit_codes import Exit

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(900)]

NEW_FILES = {
    "QCD": SAMPLES / "qcd_13TeV_PU20_1.root",
    "ttbar": SAMPLES / "ttbar_13TeV_PU20_1.root",
    "W+jets": SAMPLES / "wjets_13TeV_PU20_1.root",
}
#: Alone, since ranks take seconds to start.
TRAIN = {"workers": 1, "algorithm": "sgd", "epochs": 3, "batch_size": 16, "seed": 2}
Features = dict[tuple[str, int], NDArray[np.float32]]


def input_options(files: dict[str, Path]) -> list[str]:
    """Options that name files by their class or sample."""
    options = []
    for name, path in files.items():
        options += ["--inputs", f"{name}={path}"]
    return options


ALL_NEW = input_options(NEW_FILES)


class TrainedTwice:
    """A copy of the finished run with a second version of its network, which is in use."""

    def __init__(self, provider: SparkProvider, folder: Path, finished_run: FinishedRun) -> None:
        self.provider = provider
        self.folder = folder
        self.run_dir = folder / "run"
        self.data = folder / "data"
        finished_run.copy(folder)
        evaluate = {"working_points": [0.6], "train_events": 50}
        self.config = small_config(folder, self.data, train=TRAIN, evaluate=evaluate)
        for stage in ("train", "export"):
            result = command(provider, stage, "--config", self.config)
            assert result.exit_code == 0, result.stderr
        self.first, self.second = sorted(self.run_dir.glob("train/0*/hlf"))
        self.exported = self.current("export") / "hlf" / "model.onnx"

    def current(self, stage: str) -> Path:
        return version_of(self.run_dir, stage)

    def evaluate(self, *arguments: str | Path, code: Exit = Exit.OK) -> str:
        """The messages of `evaluate-files`, without the reference unless the options ask for it."""
        options = ("--config", self.config, "--set", "evaluate.reference=false")
        result = command(self.provider, "evaluate-files", *options, *arguments)
        assert result.exit_code == code, result.stderr
        return str(result.stderr)

    def error_of(self, code: Exit, *arguments: str | Path) -> str:
        """The message of an evaluation that is refused and leaves nothing."""
        evaluations_before = self.evaluations()
        error = self.evaluate(*arguments, code=code)
        assert self.evaluations() == evaluations_before
        return error

    def evaluations(self) -> set[str]:
        """Names of all in the folder of evaluations but the lock of the job."""
        names = {path.name for path in (self.run_dir / "evaluations").glob("*")}
        return names - {".lock"}

    def training_file(self) -> Path:
        """The file of ttbar that the networks were trained on."""
        (file,) = self.data.glob("ttbar*")
        return file

    def selected_events(self, *splits: str) -> set[tuple[str, int]]:
        """Identities of the selected events of splits."""
        return set(features_by_event(self.current("features"), *splits))


@pytest.fixture(scope="module")
def run(
    provider: SparkProvider, finished_run: FinishedRun, tmp_path_factory: pytest.TempPathFactory
) -> TrainedTwice:
    folder = tmp_path_factory.mktemp("trained") / "with space"
    return TrainedTwice(provider, folder, finished_run)


@pytest.fixture(scope="module")
def all_features(run: TrainedTwice, tmp_path_factory: pytest.TempPathFactory) -> Features:
    """The features of all bundled files, as the normal stages make them."""
    folder = tmp_path_factory.mktemp("normal")
    config = small_config(folder, SAMPLES)
    for stage in ("ingest", "features"):
        result = command(run.provider, stage, "--config", config)
        assert result.exit_code == 0, result.stderr
    return features_by_event(next(folder.glob("run/features/0*")), *SPLITS)


def expected_scores(
    model_folder: Path, features: Features, keys: list[tuple[str, int]]
) -> NDArray[np.float32]:
    """The scores of a trained network for events."""
    model, _ = load_model(model_folder / "model")
    return model.probabilities({"hlf": np.stack([features[key] for key in keys])})


def test_new_events_of_known_classes_get_metrics(
    run: TrainedTwice, all_features: Features, monkeypatch: pytest.MonkeyPatch
) -> None:
    label_of_file = {uuid_of(path): label for label, path in enumerate(NEW_FILES.values())}
    evaluations_before = run.evaluations()
    # The run folder is a path from the current folder, as in the demo.
    monkeypatch.chdir(run.run_dir.parent)

    run.evaluate("--set", f"run_dir={run.run_dir.name}", *ALL_NEW)

    (name,) = run.evaluations() - evaluations_before
    folder = run.run_dir / "evaluations" / name
    table = pq.read_table(folder / "hlf" / "predictions.parquet")
    keys = keys_of(table)
    scores = probabilities(table)
    predicted = scores.argmax(axis=1)
    labels = np.array([label_of_file[uuid] for uuid, _ in keys])
    assert set(keys) == {key for key in all_features if key[0] in label_of_file}
    np.testing.assert_array_equal(table["label"].to_numpy(), labels)
    np.testing.assert_allclose(scores, expected_scores(run.second, all_features, keys), atol=1e-6)

    with uproot.open({folder / "hlf" / "predictions.root": "predictions"}) as tree:
        columns = tree.arrays(["file_uuid", "entry", "label", "predicted"], library="np")
    assert list(zip(columns["file_uuid"], columns["entry"].tolist(), strict=True)) == keys
    np.testing.assert_array_equal(columns["label"], labels)
    np.testing.assert_array_equal(columns["predicted"], predicted)

    metrics = strict_json(folder / "metrics.json")
    weights = table["weight"].to_numpy()
    accuracies = np.bincount(labels, weights * (predicted == labels)) / np.bincount(labels, weights)
    assert metrics["runs"]["hlf"]["accuracy"]["value"] == pytest.approx(np.mean(accuracies))
    assert metrics["num_events"] == len(labels)
    # Features of new events are not kept, and the scores are not compared with those of training
    # events.
    assert not (folder / "features").exists()
    assert metrics["runs"]["hlf"]["train_against_test"] == {}


def test_slices_count_by_the_cross_sections_of_the_config(
    run: TrainedTwice, tmp_path: Path
) -> None:
    slices = write_slices(tmp_path, [NEW_FILES["QCD"]], THINNED)
    ttbar = {"name": "ttbar", "label": 1, "files": ["-"], "cross_section_pb": 230.0}
    wjets = {"name": "wjets", "label": 2, "files": ["-"], "cross_section_pb": 18_000.0}
    samples = [*slices, ttbar, wjets]
    reference = {"reference": False}
    config = small_config(tmp_path, run.data, samples=samples, evaluate=reference)
    model = f"net={run.exported}"
    new_files = {name: NEW_FILES[name] for name in ("ttbar", "W+jets")}
    slice_files = {sample["name"]: Path(sample["files"][0]) for sample in slices}

    def evaluate(files: dict[str, Path], out: Path) -> str:
        options = input_options(files | new_files)
        arguments = ("--config", config, "--model", model, *options, "--out", out)
        result = command(run.provider, "evaluate-files", *arguments)
        assert result.exit_code == 0, result.stderr
        return str(result.stderr)

    evaluate(slice_files, tmp_path / "by sample")

    predictions = pq.read_table(tmp_path / "by sample" / "net" / "predictions.parquet").to_pandas()
    weight_sums = predictions.groupby("sample")["weight"].sum()
    counts = predictions["sample"].value_counts()
    total_cross_section = 0.0
    for sample in slices:
        name = sample["name"]
        with uproot.open({slice_files[name]: "Delphes"}) as tree:
            efficiency = counts[name] / tree.num_entries
        assert weight_sums[name] == pytest.approx(sample["cross_section_pb"] * efficiency)
        total_cross_section += sample["cross_section_pb"] * efficiency
    rates = strict_json(tmp_path / "by sample" / "metrics.json")["rates_before"]
    assert rates.keys() == NEW_FILES.keys()
    # The luminosity is 0.02 / (pb s).
    assert rates["QCD"] == pytest.approx(0.02 * total_cross_section)

    missing = slices[0]["name"]
    del slice_files[missing]
    output = evaluate(slice_files, tmp_path / "two slices")

    assert f"There are no rates: --inputs names no files of {missing} (SAMPLE=GLOB)." in output
    assert strict_json(tmp_path / "two slices" / "metrics.json")["rates_before"] is None


def test_two_models_are_evaluated_side_by_side_on_the_test_split(
    run: TrainedTwice, all_features: Features
) -> None:
    out = run.folder / "side_by_side"
    models = {"first": run.first, "second": run.second}
    options = []
    for name, model in models.items():
        options += ["--model", f"{name}={model}"]

    run.evaluate(*options, "--out", out)

    assert list(strict_json(out / "metrics.json")["runs"]) == ["first", "second"]
    scores = {}
    for name, model in models.items():
        table = pq.read_table(out / name / "predictions.parquet")
        keys = keys_of(table)
        scores[name] = probabilities(table)
        expected = expected_scores(model, all_features, keys)
        assert set(keys) == run.selected_events("test")
        np.testing.assert_allclose(scores[name], expected, atol=1e-6)
    assert np.abs(scores["first"] - scores["second"]).max() > 0.01


def count_known_events(run: TrainedTwice, *, every: int = 1) -> tuple[int, int]:
    """Of every n-th event of the training file: those trained on, and all that are selected."""
    uuid = uuid_of(run.training_file())

    def count(*splits: str) -> int:
        keys = run.selected_events(*splits)
        return sum(key[0] == uuid and key[1] % every == 0 for key in keys)

    num_trained = count("train", "val")
    num_selected = count(*SPLITS)
    assert num_selected > num_trained > 25
    return num_trained, num_selected


def test_training_events_are_refused_with_their_number(run: TrainedTwice) -> None:
    num_trained, num_selected = count_known_events(run)

    error = run.error_of(Exit.USER_ERROR, "--inputs", f"ttbar={run.training_file()}")

    assert f"hlf was trained on {num_trained} of these {num_selected} events" in error


@pytest.fixture(scope="module")
def skim(run: TrainedTwice) -> Path:
    """Every other event of a training file, under another identity."""
    branches = list(LAYOUTS[BranchLayout.DELPHES].branches({}).values())
    path = run.folder / "skim.root"
    with uproot.open({run.training_file(): "Delphes"}) as tree:
        events = tree.arrays(branches)[::2]
    columns = {name: events[name] for name in branches}
    types = {name: column.type.content for name, column in columns.items()}
    with uproot.recreate(path) as file:
        file.mktree("Delphes", types).extend(columns)
    return path


def test_training_events_in_a_skim_are_recognised(
    run: TrainedTwice, skim: Path, tmp_path: Path
) -> None:
    num_trained, num_selected = count_known_events(run, every=2)
    inputs = ("--inputs", f"ttbar={skim}")
    empty_run = ("--set", f"run_dir={tmp_path / 'empty'}")

    by_run = run.error_of(Exit.USER_ERROR, *inputs)
    # The model knows its events, whatever run folder asks; so does an exported network.
    by_model = run.error_of(Exit.USER_ERROR, "--model", run.second, *empty_run, *inputs)
    by_export = run.error_of(Exit.USER_ERROR, "--model", f"net={run.exported}", *inputs)

    message = f"was trained on {num_trained} of these {num_selected} events"
    assert f"hlf {message}" in by_run
    assert f"hlf {message}" in by_model
    assert f"net {message}" in by_export


def test_a_lone_exported_file_is_evaluated_on_events_that_the_run_knows(
    run: TrainedTwice, skim: Path, tmp_path: Path
) -> None:
    num_trained, _ = count_known_events(run, every=2)
    model = shutil.copy(run.exported, tmp_path / "alone.onnx")
    files = NEW_FILES | {"ttbar": skim}
    with_reference = ("--set", "evaluate.reference=true")

    messages = run.evaluate(
        "--model", f"net={model}", *input_options(files), "--out", tmp_path / "out", *with_reference
    )

    assert f"the training and validation splits hold {num_trained} of these" in messages
    # The reference is not measured with events that it has seen.
    assert list(strict_json(tmp_path / "out" / "metrics.json")["runs"]) == ["net"]


def name_other_code_of_keys(manifest: dict[str, Any], _: Path) -> None:
    manifest["fingerprint"]["code"]["ingestion.copies"] = "another"


def remove_keys(_: dict[str, Any], version: Path) -> None:
    shutil.rmtree(version / "keys")


@pytest.mark.parametrize("spoil", [name_other_code_of_keys, remove_keys])
def test_a_skim_whose_events_cannot_be_recognised_is_noted(
    run: TrainedTwice, skim: Path, tmp_path: Path, spoil: Callable[[dict[str, Any], Path], None]
) -> None:
    run_dir = shutil.copytree(run.run_dir, tmp_path / "run")
    version = run_dir / "ingest" / run.current("ingest").name
    manifest = strict_json(version / "manifest.json")
    spoil(manifest, version)
    (version / "manifest.json").write_text(json.dumps(sealed_manifest(manifest)))
    inputs = ("--inputs", f"ttbar={skim}", *ALL_NEW)
    settings = ("--set", f"run_dir={run_dir}", "--set", "evaluate.reference=true")

    messages = run.evaluate(*inputs, "--out", tmp_path / "out", *settings)

    assert "whether hlf was trained on these events or on copies of them" in messages
    no_reference = "no boosted trees: the training and validation splits may hold copies of these"
    assert no_reference in messages


@pytest.mark.parametrize(
    ("inputs", "code", "message"),
    [
        (
            ["ttbra={new}"],
            Exit.USAGE,
            "there is no sample 'ttbra', and no class of one sample. Did you mean 'ttbar'?",
        ),
        (
            ["ttbar={new}", "{new}"],
            Exit.USAGE,
            "`python -m pipeline predict` scores files whose classes are unknown",
        ),
        (["QCD={tmp}/soft.root"], Exit.USER_ERROR, "none of its events passes"),
        (["QCD={tmp}/jets.root"], Exit.USER_ERROR, "no event of these files passes the selection"),
        (["ttbar={new}"], Exit.USER_ERROR, "QCD"),
    ],
)
def test_impossible_inputs_are_explained_and_leave_nothing(
    run: TrainedTwice, tmp_path: Path, inputs: list[str], code: Exit, message: str
) -> None:
    write_delphes(tmp_path / "soft.root", [event_row()] * 3)
    not_isolated = event_row(electrons=[lepton(40, 0, 0)], tracks=[track(40, 0.1, 0)])
    write_delphes(tmp_path / "jets.root", distinct([not_isolated] * 3))
    options = []
    for template in inputs:
        options += ["--inputs", template.format(tmp=tmp_path, new=NEW_FILES["ttbar"])]

    error = run.error_of(code, *options, "--out", tmp_path / "out")

    assert message in error
    assert not list(tmp_path.glob("*out*"))


def test_files_that_wait_for_another_run_are_named(run: TrainedTwice) -> None:
    until = ("--set", "ingest.until=2000-01-01T00:00:00Z")

    error = run.error_of(Exit.NOT_THERE_YET, *ALL_NEW, *until)

    reason = "it was modified at or after ingest.until, 2000"
    assert f"  left for another run: {NEW_FILES['QCD']}: {reason}" in error


def test_other_settings_than_those_of_the_features_are_refused(run: TrainedTwice) -> None:
    cone = ("--set", "features.isolation_cone=0.4")
    classes = ("--set", "classes=[QCD,ttbar,others]", "--set", "evaluate.signal=ttbar")

    error_of_inputs = run.error_of(Exit.USER_ERROR, *ALL_NEW, *cone)
    error_of_cone = run.error_of(Exit.USER_ERROR, "--model", run.first, *cone)
    error_of_classes = run.error_of(Exit.USER_ERROR, "--model", run.first, *classes)

    assert "isolation_cone 0.3 instead of 0.4" in error_of_inputs
    assert "made with other settings" in error_of_cone
    assert "made with other settings" in error_of_classes


def test_without_a_run_there_must_be_models_and_inputs(run: TrainedTwice, tmp_path: Path) -> None:
    empty_run = ("--set", f"run_dir={tmp_path / 'empty'}")

    without_inputs = run.error_of(Exit.USER_ERROR, "--model", run.first, *empty_run)
    without_models = run.error_of(Exit.USER_ERROR, *ALL_NEW, *empty_run)
    run.evaluate("--model", run.exported, *ALL_NEW, *empty_run)

    assert "there is no test split" in without_inputs
    assert "there are no trained networks" in without_models
    assert (tmp_path / "empty" / "evaluations" / "0001" / "hlf" / "predictions.root").exists()
