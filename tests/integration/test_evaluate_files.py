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
from prediction_trees import keys_of, probabilities, strict_json, uuid_of
from sliced_qcd import THINNED, write_slices

from features.matrices import hlf_array
from features.schema import SPLITS
from ingestion.known_layouts import LAYOUTS, BranchLayout
from models.saved_model import load_model
from pipeline.machine.spark_session import SparkProvider
from pipeline.runs.manifest import sealed_manifest
from pipeline.terminal.exit_codes import Exit

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(900)]

NEW = {
    "QCD": SAMPLES / "qcd_13TeV_PU20_1.root",
    "ttbar": SAMPLES / "ttbar_13TeV_PU20_1.root",
    "W+jets": SAMPLES / "wjets_13TeV_PU20_1.root",
}
CLASSES = list(NEW)
ALL_NEW = [word for name, path in NEW.items() for word in ("--inputs", f"{name}={path}")]
#: Alone, since ranks take seconds to start.
TRAIN = {"workers": 1, "algorithm": "sgd", "epochs": 3, "batch_size": 16, "seed": 2}
Keys = tuple[str, int]


class Trained:
    """A copy of the undisturbed run with a second version of its network, which is in use."""

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

    def evaluate(self, *arguments: str | Path) -> Any:
        """`evaluate-files` with these options, without the reference unless they ask for it."""
        plain = ("--config", self.config, "--set", "evaluate.reference=false")
        return command(self.provider, "evaluate-files", *plain, *arguments)

    def refused(self, code: Exit, *arguments: str | Path) -> str:
        """What an evaluation says that cannot be; it leaves nothing."""
        left_before = self.left()
        result = self.evaluate(*arguments)
        assert result.exit_code == code, result.stderr
        assert self.left() == left_before
        return str(result.stderr)

    def left(self) -> list[str]:
        """Names of what lies beside the lock of the job."""
        return sorted(
            path.name for path in (self.run_dir / "evaluations").glob("*") if path.name != ".lock"
        )

    def events(self, *splits: str, file: Path | None = None) -> set[Keys]:
        """Identities of the selected events of some splits."""
        results = rows(self.current("features"), *splits)
        uuid = uuid_of(file) if file else ""
        return {key for key in results if not uuid or key[0] == uuid}


@pytest.fixture(scope="module")
def trained(
    provider: SparkProvider, finished_run: FinishedRun, tmp_path_factory: pytest.TempPathFactory
) -> Trained:
    return Trained(provider, tmp_path_factory.mktemp("trained") / "with space", finished_run)


@pytest.fixture(scope="module")
def normal(
    trained: Trained, tmp_path_factory: pytest.TempPathFactory
) -> dict[Keys, NDArray[np.float32]]:
    """The high-level features of all events of all files, as the normal stages make them."""
    folder = tmp_path_factory.mktemp("normal")
    config = small_config(folder, SAMPLES)
    for stage in ("ingest", "features"):
        result = command(trained.provider, stage, "--config", config)
        assert result.exit_code == 0, result.stderr
    return rows(next(folder.glob("run/features/0*")), *SPLITS)


def rows(folder: Path, *splits: str) -> dict[Keys, NDArray[np.float32]]:
    tables = [
        pq.read_table(path) for split in splits for path in sorted((folder / split).iterdir())
    ]
    return {
        key: hlf
        for table in tables
        for key, hlf in zip(keys_of(table), hlf_array(table), strict=True)
    }


def scores_of(
    folder: Path, features: dict[Keys, NDArray[np.float32]], keys: list[Keys]
) -> NDArray[np.float32]:
    """What a trained network makes of events."""
    model, _ = load_model(folder / "model")
    return model.probabilities({"hlf": np.stack([features[key] for key in keys])})


def test_new_events_of_known_classes_get_metrics(
    trained: Trained, normal: dict[Keys, NDArray[np.float32]], monkeypatch: pytest.MonkeyPatch
) -> None:
    left_before = trained.left()
    # As a path of the current folder, as in the demo.
    monkeypatch.chdir(trained.run_dir.parent)
    result = trained.evaluate("--set", f"run_dir={trained.run_dir.name}", *ALL_NEW)
    assert result.exit_code == 0, result.stderr
    (index,) = set(trained.left()) - set(left_before)
    folder = trained.run_dir / "evaluations" / index
    metrics = strict_json(folder / "metrics.json")
    table = pq.read_table(folder / "hlf" / "predictions.parquet")
    label_of = {uuid_of(path): label for label, path in enumerate(NEW.values())}
    assert set(keys_of(table)) == {key for key in normal if key[0] in label_of}
    labels = np.array([label_of[uuid] for uuid, _ in keys_of(table)])
    np.testing.assert_array_equal(table["label"].to_numpy(), labels)
    np.testing.assert_allclose(
        probabilities(table), scores_of(trained.second, normal, keys_of(table)), atol=1e-6
    )
    with uproot.open({folder / "hlf" / "predictions.root": "predictions"}) as tree:
        found = tree.arrays(["file_uuid", "entry", "label", "predicted"], library="np")
    assert list(zip(found["file_uuid"], found["entry"].tolist(), strict=True)) == keys_of(table)
    np.testing.assert_array_equal(found["label"], labels)
    np.testing.assert_array_equal(found["predicted"], probabilities(table).argmax(axis=1))
    hits = (probabilities(table).argmax(axis=1) == labels).astype(float)
    weights = table["weight"].to_numpy()
    of_classes = [
        np.average(hits[labels == each], weights=weights[labels == each]) for each in range(3)
    ]
    assert metrics["runs"]["hlf"]["accuracy"]["value"] == pytest.approx(np.mean(of_classes))
    assert metrics["num_events"] == len(labels)
    # Features of new events need not stay; nor are the scores compared with those of training
    # events.
    assert not (folder / "features").exists()
    assert metrics["runs"]["hlf"]["train_against_test"] == {}


def test_slices_count_by_the_cross_sections_of_the_config(trained: Trained, tmp_path: Path) -> None:
    slices = write_slices(tmp_path, [NEW["QCD"]], THINNED)
    reference = {"ttbar": 230.0, "wjets": 18_000.0}
    remaining = [
        {"name": name, "label": label, "files": ["-"], "cross_section_pb": cross_section}
        for label, (name, cross_section) in enumerate(reference.items(), start=1)
    ]
    config = small_config(
        tmp_path, trained.data, samples=[*slices, *remaining], evaluate={"reference": False}
    )
    plain = ("evaluate-files", "--config", config, "--model", f"net={trained.exported}")
    new = ("--inputs", f"ttbar={NEW['ttbar']}", "--inputs", f"W+jets={NEW['W+jets']}")
    named = [
        word for slice_ in slices for word in ("--inputs", f"{slice_['name']}={slice_['files'][0]}")
    ]
    result = command(trained.provider, *plain, *named, *new, "--out", tmp_path / "by sample")
    assert result.exit_code == 0, result.stderr
    table = pq.read_table(tmp_path / "by sample" / "net" / "predictions.parquet")
    samples, weights = np.array(table["sample"].to_pylist()), table["weight"].to_numpy()
    expected = []
    for slice_ in slices:
        with uproot.open({slice_["files"][0]: "Delphes"}) as tree:
            expected.append(
                slice_["cross_section_pb"] * (samples == slice_["name"]).sum() / tree.num_entries
            )
    results = [weights[samples == slice_["name"]].sum() for slice_ in slices]
    assert results == pytest.approx(expected)
    metrics = strict_json(tmp_path / "by sample" / "metrics.json")
    # The luminosity is 0.02 / (pb s).
    assert metrics["rates_before"]["QCD"] == pytest.approx(0.02 * sum(expected))
    assert set(metrics["rates_before"]) == set(CLASSES)
    result = command(trained.provider, *plain, *named[2:], *new, "--out", tmp_path / "two slices")
    assert result.exit_code == 0, result.stderr
    assert (
        f"There are no rates: --inputs names no files of {slices[0]['name']} (SAMPLE=GLOB)."
        in result.stderr
    )
    assert strict_json(tmp_path / "two slices" / "metrics.json")["rates_before"] is None


def test_two_models_side_by_side_on_the_test_split(
    trained: Trained, normal: dict[Keys, NDArray[np.float32]]
) -> None:
    out = trained.folder / "side_by_side"
    pair = {"first": trained.first, "second": trained.second}
    result = trained.evaluate(
        *(w for name, path in pair.items() for w in ("--model", f"{name}={path}")), "--out", out
    )
    assert result.exit_code == 0, result.stderr
    assert list(strict_json(out / "metrics.json")["runs"]) == ["first", "second"]
    scores = {}
    for name, run in pair.items():
        table = pq.read_table(out / name / "predictions.parquet")
        assert set(keys_of(table)) == trained.events("test")
        scores[name] = probabilities(table)
        np.testing.assert_allclose(scores[name], scores_of(run, normal, keys_of(table)), atol=1e-6)
    assert np.abs(scores["first"] - scores["second"]).max() > 0.01


def test_events_that_were_trained_on_are_refused_with_their_number(trained: Trained) -> None:
    (file,) = trained.data.glob("ttbar*")
    seen, complete = (
        len(trained.events(*splits, file=file)) for splits in (("train", "val"), SPLITS)
    )
    assert complete > seen > 50
    message = trained.refused(Exit.USER_ERROR, "--inputs", f"ttbar={file}")
    assert f"hlf was trained on {seen} of these {complete} events" in message


@pytest.fixture(scope="module")
def skim(trained: Trained) -> Path:
    """Every other event of a training file, under another identity."""
    (file,) = trained.data.glob("ttbar*")
    branches = list(LAYOUTS[BranchLayout.DELPHES].branches({}).values())
    path = trained.folder / "skim.root"
    with uproot.open({file: "Delphes"}) as tree, uproot.recreate(path) as skim:
        events = tree.arrays(branches)[::2]
        skim.mktree("Delphes", {name: events[name].type.content for name in branches}).extend(
            {name: events[name] for name in branches}
        )
    return path


def test_training_events_in_a_skim_are_recognised(
    trained: Trained, skim: Path, tmp_path: Path
) -> None:
    (file,) = trained.data.glob("ttbar*")
    seen, complete = (
        sum(entry % 2 == 0 for _, entry in trained.events(*splits, file=file))
        for splits in (("train", "val"), SPLITS)
    )
    assert complete > seen > 25
    message = trained.refused(Exit.USER_ERROR, "--inputs", f"ttbar={skim}")
    assert f"hlf was trained on {seen} of these {complete} events" in message
    # The model knows its events, whatever run folder asks.
    other = ("--model", trained.second, "--set", f"run_dir={tmp_path / 'empty'}")
    assert f"hlf was trained on {seen} of these {complete} events" in trained.refused(
        Exit.USER_ERROR, *other, "--inputs", f"ttbar={skim}"
    )
    # So does an exported network; a file of it alone does not.
    message = trained.refused(
        Exit.USER_ERROR, "--model", f"net={trained.exported}", "--inputs", f"ttbar={skim}"
    )
    assert f"net was trained on {seen} of these {complete} events" in message
    alone = shutil.copy(trained.exported, tmp_path / "alone.onnx")
    out = tmp_path / "seen"
    remaining = [word for name in ("QCD", "W+jets") for word in ("--inputs", f"{name}={NEW[name]}")]
    result = trained.evaluate(
        *("--model", f"net={alone}", "--inputs", f"ttbar={skim}", *remaining),
        *("--out", out, "--set", "evaluate.reference=true"),
    )
    assert result.exit_code == 0, result.stderr
    assert f"the training and validation splits hold {seen} of these" in result.stderr
    # The reference is not measured with events that it has seen.
    assert list(strict_json(out / "metrics.json")["runs"]) == ["net"]


def keys_of_earlier_code(manifest: dict[str, Any], _: Path) -> None:
    manifest["fingerprint"]["code"]["ingestion.copies"] = "another"


def keys_gone(_: dict[str, Any], version: Path) -> None:
    shutil.rmtree(version / "keys")


@pytest.mark.parametrize("spoil", [keys_of_earlier_code, keys_gone])
def test_a_skim_whose_events_cannot_be_known_is_noted(
    trained: Trained, skim: Path, tmp_path: Path, spoil: Callable[[dict[str, Any], Path], None]
) -> None:
    run_dir = Path(shutil.copytree(trained.run_dir, tmp_path / "run"))
    version = run_dir / "ingest" / trained.current("ingest").name
    manifest = strict_json(version / "manifest.json")
    spoil(manifest, version)
    (version / "manifest.json").write_text(json.dumps(sealed_manifest(manifest)))
    result = trained.evaluate(
        *(
            "--inputs",
            f"ttbar={skim}",
            *ALL_NEW,
            "--out",
            tmp_path / "out",
            "--set",
            f"run_dir={run_dir}",
        ),
        *("--set", "evaluate.reference=true"),
    )
    assert result.exit_code == 0, result.stderr
    assert "whether hlf was trained on these events or on copies of them" in result.stderr
    assert (
        "no boosted trees: the training and validation splits may hold copies of these events"
        in result.stderr
    )


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
def test_inputs_that_cannot_be_are_explained_and_leave_nothing(
    trained: Trained, tmp_path: Path, inputs: list[str], code: Exit, message: str
) -> None:
    write_delphes(tmp_path / "soft.root", [event_row()] * 3)
    jets = event_row(electrons=[lepton(40, 0, 0)], tracks=[track(40, 0.1, 0)])
    write_delphes(tmp_path / "jets.root", distinct([jets] * 3))
    options = [
        word
        for input_ in inputs
        for word in ("--inputs", input_.format(tmp=tmp_path, new=NEW["ttbar"]))
    ]
    out = tmp_path / "out"
    assert message in trained.refused(code, *options, "--out", out)
    assert not [path.name for path in tmp_path.iterdir() if "out" in path.name]


def test_files_that_wait_are_named(trained: Trained) -> None:
    message = trained.refused(
        Exit.NOT_THERE_YET, *ALL_NEW, "--set", "ingest.until=2000-01-01T00:00:00Z"
    )
    assert (
        f"  left for another run: {NEW['QCD']}: it was modified at or after ingest.until, 2000"
        in message
    )


def test_other_settings_than_those_of_the_features_are_refused(trained: Trained) -> None:
    second = ("--set", "features.isolation_cone=0.4")
    message = trained.refused(Exit.USER_ERROR, *ALL_NEW, *second)
    assert "isolation_cone 0.3 instead of 0.4" in message
    for change in (
        second,
        ("--set", "classes=[QCD,ttbar,others]", "--set", "evaluate.signal=ttbar"),
    ):
        assert "made with other settings" in trained.refused(
            Exit.USER_ERROR, "--model", trained.first, *change
        )


def test_without_a_run_there_must_be_models_and_inputs(trained: Trained, tmp_path: Path) -> None:
    empty = ("--set", f"run_dir={tmp_path / 'empty'}")
    assert "there is no test split" in trained.refused(
        Exit.USER_ERROR, "--model", trained.first, *empty
    )
    assert "there are no trained networks" in trained.refused(Exit.USER_ERROR, *ALL_NEW, *empty)
    result = trained.evaluate("--model", trained.exported, *ALL_NEW, *empty)
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "empty" / "evaluations" / "0001" / "hlf" / "predictions.root").exists()
