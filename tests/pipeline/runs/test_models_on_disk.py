"""Models by their paths: every form that there is, and a clear refusal of all others."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from feature_datasets import CLASSES, write_dataset
from networks import small_network, small_spec
from onnx import TensorProto, helper
from published_by_hand import TRAINING_SUMMARY, example_version
from training_runs import make_spec

from features.columns import hlf_names
from features.dataset import FeatureDataset
from models.errors import ModelError, SavedModelError
from models.export.onnx_export import export_onnx
from models.saved_model import save_model
from pipeline.errors import ConfigError, MissingInputError
from pipeline.runs.models_on_disk import find_models
from pipeline.runs.trained_models import (
    FoundModel,
    check_definitions,
    check_unseen_events,
    trained_models,
)

DEFINITIONS = {"isolation_cone": 0.3, "min_jet_pt": 30.0}
EVENTS = {"hlf": np.random.default_rng(1).normal(size=(5, len(hlf_names()))).astype(np.float32)}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> FeatureDataset:
    return write_dataset(
        tmp_path_factory.mktemp("data") / "set", rows={"train": [6, 5], "val": [4], "test": [7]}
    )


def write_run(
    folder: Path, dataset: FeatureDataset, *, seed: int = 1, classes: list[str] = CLASSES
) -> Path:
    """The files of a training run that an evaluation reads."""
    folder.mkdir(parents=True)
    make_spec(dataset, folder).save(folder / "run.json")
    spec = small_spec("hlf")._replace(definitions=DEFINITIONS, classes=classes)
    save_model(small_network(spec, seed=seed, dtype=torch.float32), spec, folder / "model")
    (folder / "metrics").mkdir()
    (folder / "metrics" / "rank-0.jsonl").write_text('{"epoch": 0}\n{"epoch": 1}\n')
    return folder


@pytest.fixture
def version(tmp_path: Path, dataset: FeatureDataset) -> Path:
    """What the train stage makes of two networks."""
    for seed, name in enumerate(("hlf", "inclusive")):
        write_run(tmp_path / "0001-ab" / name, dataset, seed=seed)
    return tmp_path / "0001-ab"


def exported(path: Path, *, seed: int = 1) -> Path:
    spec = small_spec("hlf")._replace(definitions=DEFINITIONS)
    path.parent.mkdir(parents=True, exist_ok=True)
    export_onnx(small_network(spec, seed=seed, dtype=torch.float32), spec, path)
    return path


def names(*arguments: str | Path) -> list[str]:
    return [
        model.candidate.name for model in find_models([str(word) for word in arguments], CLASSES)
    ]


def test_a_name_and_a_path(version: Path, dataset: FeatureDataset) -> None:
    (actual,) = find_models([f"first={version}/hlf"], CLASSES)
    assert actual.candidate.name == "first"
    assert actual.candidate.history == [{"epoch": 0}, {"epoch": 1}]
    assert (actual.classes, actual.definitions, actual.dataset) == (
        CLASSES,
        DEFINITIONS,
        dataset.folder,
    )
    expected = small_network("hlf", seed=0, dtype=torch.float32).probabilities(EVENTS)
    np.testing.assert_array_equal(actual.candidate.model.probabilities(EVENTS), expected)


def test_a_training_with_several_seeds_gives_the_first_with_the_others_behind_it(
    version: Path, dataset: FeatureDataset
) -> None:
    write_run(version / "hlf-seed-2", dataset, seed=7)
    counters = {
        "networks": {"hlf": TRAINING_SUMMARY, "inclusive": TRAINING_SUMMARY},
        "further": {"hlf": {"hlf-seed-2": TRAINING_SUMMARY}, "inclusive": {}},
    }
    hlf, inclusive = trained_models(example_version("train", version, counters=counters), CLASSES)
    assert (hlf.candidate.name, inclusive.candidate.name) == ("hlf", "inclusive")
    results = [each.probabilities(EVENTS) for each in (hlf.candidate.model, *hlf.candidate.further)]
    expected = [
        small_network("hlf", seed=seed, dtype=torch.float32).probabilities(EVENTS)
        for seed in (0, 7)
    ]
    np.testing.assert_array_equal(results, expected)
    assert len(inclusive.candidate.further) == 0


def test_a_path_stands_for_one_or_several_networks(version: Path, tmp_path: Path) -> None:
    assert names(version) == ["hlf", "inclusive"]
    assert names(version / "hlf" / "model") == ["hlf"]
    for name in ("hlf", "other"):
        exported(tmp_path / "export" / name / "model.onnx")
    assert names(tmp_path / "export") == ["hlf", "other"]
    # The same network of two runs is distinguished by the run.
    path = Path(shutil.copytree(version, version.with_name("0002-cd")))
    actual = names(version, path)
    assert actual[:2] == ["hlf", "inclusive"]
    assert len(set(actual)) == 4


def test_a_single_exported_file_is_called_by_its_folder_or_its_own_name(tmp_path: Path) -> None:
    path = exported(tmp_path / "mine" / "model.onnx")
    (actual,) = find_models([str(path)], CLASSES)
    assert (actual.candidate.name, actual.dataset, actual.definitions) == (
        "mine",
        None,
        DEFINITIONS,
    )
    expected = small_network("hlf", dtype=torch.float32).probabilities(EVENTS)
    np.testing.assert_allclose(actual.candidate.model.probabilities(EVENTS), expected, atol=1e-6)
    assert names(path.rename(tmp_path / "v1.2.onnx")) == ["v1.2"]


@pytest.mark.parametrize(
    "message",
    [
        ["both={0}"],
        ["{0}/hlf", "{0}/hlf", "{0}/hlf"],
        ["../evil={0}/hlf"],
        ["={0}/hlf"],
        ["metrics.json={0}/hlf"],
        # The evaluation of new files removed its results.
        ["keys={0}/hlf"],
    ],
)
def test_names_that_are_twice_there_or_no_folder_are_refused(
    version: Path, message: list[str]
) -> None:
    with pytest.raises(ConfigError, match=r"--model first=.* --model second="):
        names(*(word.format(version) for word in message))


def test_a_path_without_a_model_says_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "hlf" / "checkpoints" / "0000-0010").mkdir(parents=True)
    (tmp_path / "empty").mkdir()
    for name, message in (
        ("nowhere", "there is no "),
        ("hlf", "holds: checkpoints"),
        ("empty", "holds: nothing"),
    ):
        with pytest.raises(MissingInputError, match=message):
            names(tmp_path / name)


def test_files_that_are_no_exported_network_are_refused(tmp_path: Path) -> None:
    value, result = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [value], [result])
    onnx.save(
        helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]),
        tmp_path / "x.onnx",
    )
    with pytest.raises(SavedModelError, match=r"x\.onnx"):
        names(tmp_path / "x.onnx")


def test_a_damaged_model_folder_and_other_classes_are_refused(
    version: Path, dataset: FeatureDataset
) -> None:
    run = write_run(version / "other", dataset, classes=["QCD", "W+jets", "ttbar"])
    with pytest.raises(
        ModelError, match=r"other was trained for the classes \['QCD', 'W\+jets', 'ttbar'\]"
    ):
        names(run)
    weights = version / "hlf" / "model" / "weights.pt"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(SavedModelError, match="hlf/model"):
        names(version / "hlf")


def test_other_features_are_refused_with_the_settings_that_differ(version: Path) -> None:
    found = find_models([str(version / "hlf")], CLASSES)
    # A model from before a setting has its default.
    check_definitions(
        found, DEFINITIONS | {"lepton_flavours": ["electron", "muon"], "max_tracks": 450}
    )
    with pytest.raises(ModelError) as caught:
        check_definitions(found, DEFINITIONS | {"isolation_cone": 0.4, "max_tracks": 100})
    assert "isolation_cone 0.3 instead of 0.4, max_tracks 450 instead of 100" in str(caught.value)
    assert "min_jet_pt" not in str(caught.value)


def found_model(path: Path) -> list[FoundModel]:
    return find_models([str(path)], CLASSES)


@pytest.mark.parametrize(("split", "count"), [("train", 11), ("val", 4)])
def test_events_that_a_model_was_made_of_are_counted_and_refused(
    version: Path, dataset: FeatureDataset, split: str, count: int
) -> None:
    files = [*dataset.files(split), *dataset.files("test")]
    for unseen in (dataset.files("test"), []):
        assert check_unseen_events(found_model(version / "hlf"), unseen) == []
    with pytest.raises(
        ModelError, match=rf"hlf was trained on {count} of these {count + 7} events"
    ):
        check_unseen_events(found_model(version / "hlf"), files)


@pytest.mark.parametrize("lost", ["hlf/run.json", "data/val/*"])
def test_what_is_not_known_to_be_unseen_is_said(
    tmp_path: Path, dataset: FeatureDataset, lost: str
) -> None:
    data = dataset._replace(folder=Path(shutil.copytree(dataset.folder, tmp_path / "data")))
    run = write_run(tmp_path / "hlf", data)
    assert found_model(run)[0].dataset == data.folder
    next(tmp_path.glob(lost)).unlink()
    assert check_unseen_events(found_model(run), dataset.files("train")) == ["hlf"]
    file = exported(tmp_path / "x.onnx")
    assert check_unseen_events(found_model(file), dataset.files("train")) == ["x"]


@pytest.mark.parametrize("move", [shutil.copytree, shutil.move])
def test_a_run_folder_that_was_moved_or_copied_knows_its_own_features(
    tmp_path: Path, dataset: FeatureDataset, move: Callable[[Path, Path], object]
) -> None:
    old, new = tmp_path / "old", tmp_path / "elsewhere" / "new"
    data = dataset._replace(folder=Path(shutil.copytree(dataset.folder, old / "features" / "0001")))
    write_run(old / "train" / "0001" / "hlf", data)
    new.parent.mkdir()
    move(old, new)
    (actual,) = found_model(new / "train" / "0001" / "hlf")
    assert actual.dataset == new / "features" / "0001"
    with pytest.raises(ModelError, match="was trained on 11"):
        check_unseen_events([actual], dataset.files("train"))
