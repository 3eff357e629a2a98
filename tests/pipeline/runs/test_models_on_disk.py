"""Models by their paths, and the refusal of paths that are none."""

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
from numpy.typing import NDArray
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
    check_particles,
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
    """Write the files of a training run that an evaluation reads; returns the folder."""
    folder.mkdir(parents=True)
    make_spec(dataset, folder).save(folder / "run.json")
    spec = small_spec("hlf")._replace(definitions=DEFINITIONS, classes=classes)
    save_model(small_network(spec, seed=seed, dtype=torch.float32), spec, folder / "model")
    (folder / "metrics").mkdir()
    (folder / "metrics" / "rank-0.jsonl").write_text('{"epoch": 0}\n{"epoch": 1}\n')
    return folder


@pytest.fixture
def version(tmp_path: Path, dataset: FeatureDataset) -> Path:
    """The folder of a training of two networks."""
    for seed, name in enumerate(("hlf", "inclusive")):
        write_run(tmp_path / "0001-ab" / name, dataset, seed=seed)
    return tmp_path / "0001-ab"


def write_onnx(path: Path, *, seed: int = 1) -> Path:
    """Write an exported network; returns its path."""
    spec = small_spec("hlf")._replace(definitions=DEFINITIONS)
    path.parent.mkdir(parents=True, exist_ok=True)
    export_onnx(small_network(spec, seed=seed, dtype=torch.float32), spec, path)
    return path


def find_model(path: Path | str) -> FoundModel:
    """The only model of a path."""
    (model,) = find_models([str(path)], CLASSES)
    return model


def names_of(*paths: str | Path) -> list[str]:
    models = find_models([str(path) for path in paths], CLASSES)
    return [model.candidate.name for model in models]


def probabilities(seed: int) -> NDArray[np.float32]:
    """The probabilities of `EVENTS` by the small network of a seed."""
    return small_network("hlf", seed=seed, dtype=torch.float32).probabilities(EVENTS)


def test_a_path_may_give_the_model_a_name(version: Path, dataset: FeatureDataset) -> None:
    model = find_model(f"first={version}/hlf")

    assert model.candidate.name == "first"
    assert model.candidate.history == [{"epoch": 0}, {"epoch": 1}]
    assert model.classes == CLASSES
    assert model.definitions == DEFINITIONS
    assert model.dataset == dataset.folder
    np.testing.assert_array_equal(
        model.candidate.model.probabilities(EVENTS), probabilities(seed=0)
    )


def test_a_training_with_several_seeds_gives_the_first_and_then_the_further_networks(
    version: Path, dataset: FeatureDataset
) -> None:
    write_run(version / "hlf-seed-2", dataset, seed=7)
    counters = {
        "networks": {"hlf": TRAINING_SUMMARY, "inclusive": TRAINING_SUMMARY},
        "further": {"hlf": {"hlf-seed-2": TRAINING_SUMMARY}, "inclusive": {}},
    }

    hlf, inclusive = trained_models(example_version("train", version, counters=counters), CLASSES)

    assert (hlf.candidate.name, inclusive.candidate.name) == ("hlf", "inclusive")
    (further,) = hlf.candidate.further
    np.testing.assert_array_equal(hlf.candidate.model.probabilities(EVENTS), probabilities(seed=0))
    np.testing.assert_array_equal(further.probabilities(EVENTS), probabilities(seed=7))
    assert len(inclusive.candidate.further) == 0


def test_a_path_stands_for_one_or_several_networks(version: Path, tmp_path: Path) -> None:
    for name in ("hlf", "other"):
        write_onnx(tmp_path / "export" / name / "model.onnx")
    second_version = Path(shutil.copytree(version, version.with_name("0002-cd")))

    assert names_of(version) == ["hlf", "inclusive"]
    assert names_of(version / "hlf" / "model") == ["hlf"]
    assert names_of(tmp_path / "export") == ["hlf", "other"]
    # The same network of two runs is distinguished by the run.
    names = names_of(version, second_version)
    assert names[:2] == ["hlf", "inclusive"]
    assert len(set(names)) == 4


def test_a_single_exported_file_is_named_after_its_folder_or_itself(tmp_path: Path) -> None:
    path = write_onnx(tmp_path / "mine" / "model.onnx")

    model = find_model(path)

    assert model.candidate.name == "mine"
    assert model.dataset is None
    assert model.definitions == DEFINITIONS
    np.testing.assert_allclose(
        model.candidate.model.probabilities(EVENTS), probabilities(seed=1), atol=1e-6
    )
    assert names_of(path.rename(tmp_path / "v1.2.onnx")) == ["v1.2"]


@pytest.mark.parametrize(
    "paths",
    [
        ["both={0}"],
        ["{0}/hlf", "{0}/hlf", "{0}/hlf"],
        ["../evil={0}/hlf"],
        ["={0}/hlf"],
        # Files and folders of an evaluation.
        ["metrics.json={0}/hlf"],
        ["keys={0}/hlf"],
    ],
)
def test_names_that_are_there_twice_or_no_folder_are_refused(
    version: Path, paths: list[str]
) -> None:
    with pytest.raises(ConfigError, match=r"--model first=.* --model second="):
        names_of(*[path.format(version) for path in paths])


@pytest.mark.parametrize(
    ("name", "message"),
    [("nowhere", "there is no "), ("hlf", "holds: checkpoints"), ("empty", "holds: nothing")],
)
def test_a_path_without_a_model_says_what_is_there(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "hlf" / "checkpoints" / "0000-0010").mkdir(parents=True)
    (tmp_path / "empty").mkdir()

    with pytest.raises(MissingInputError, match=message):
        find_model(tmp_path / name)


def test_files_that_are_no_exported_network_are_refused(tmp_path: Path) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [x], [y])
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[opset]), tmp_path / "x.onnx")

    with pytest.raises(SavedModelError, match=r"x\.onnx"):
        find_model(tmp_path / "x.onnx")


def test_a_damaged_model_folder_is_refused(version: Path) -> None:
    weights = version / "hlf" / "model" / "weights.pt"
    weights.write_bytes(weights.read_bytes()[:100])

    with pytest.raises(SavedModelError, match="hlf/model"):
        find_model(version / "hlf")


def test_a_model_of_other_classes_is_refused(version: Path, dataset: FeatureDataset) -> None:
    run = write_run(version / "other", dataset, classes=["QCD", "W+jets", "ttbar"])

    with pytest.raises(
        ModelError, match=r"other was trained for the classes \['QCD', 'W\+jets', 'ttbar'\]"
    ):
        find_model(run)


def test_other_features_are_refused_with_the_settings_that_differ(version: Path) -> None:
    models = [find_model(version / "hlf")]
    defaults = {"lepton_flavours": ["electron", "muon"], "max_tracks": 450}

    # A model from before a setting has its default.
    check_definitions(models, DEFINITIONS | defaults, {})

    with pytest.raises(ModelError) as caught:
        check_definitions(models, DEFINITIONS | {"isolation_cone": 0.4, "max_tracks": 100}, {})
    assert "isolation_cone 0.3 instead of 0.4, max_tracks 450 instead of 100" in str(caught.value)
    assert "min_jet_pt" not in str(caught.value)


def test_other_thresholds_of_ingest_are_refused_with_those_that_differ(version: Path) -> None:
    unknown = find_model(version / "hlf")
    model = unknown._replace(reading={"min_track_pt": 5.0, "tree": "Events"})

    # Names of trees and branches may differ; a model from before a threshold has its default.
    check_definitions([model], DEFINITIONS, {"min_track_pt": 5.0, "min_btag": None, "tree": "t"})
    check_definitions([unknown], DEFINITIONS, {"min_track_pt": 0.5})
    check_definitions([model], DEFINITIONS, {})

    with pytest.raises(ModelError) as caught:
        check_definitions([unknown, model], DEFINITIONS, {"min_track_pt": 0.5, "min_btag": 0.7})
    assert "ingest.min_btag None instead of 0.7, ingest.min_track_pt 5.0 instead of 0.5" in str(
        caught.value
    )


def test_models_of_files_without_particles_are_refused_for_events_with_them(
    version: Path,
) -> None:
    model = find_model(version / "hlf")
    with_particles, without_particles = (
        model._replace(reading={"has_particles": has_particles}) for has_particles in (True, False)
    )

    check_particles([model, with_particles], {"has_particles": True})
    check_particles([with_particles, without_particles], {})
    with pytest.raises(ModelError, match="hlf was trained on files that lack tracks"):
        check_particles([without_particles], {"has_particles": True})
    with pytest.raises(ModelError, match="hlf was trained on files that have tracks"):
        check_particles([with_particles], {"has_particles": False})


@pytest.mark.parametrize(("split", "count"), [("train", 11), ("val", 4)])
def test_events_that_a_model_was_made_of_are_counted_and_refused(
    version: Path, dataset: FeatureDataset, split: str, count: int
) -> None:
    models = [find_model(version / "hlf")]
    seen_and_unseen = [*dataset.files(split), *dataset.files("test")]

    assert check_unseen_events(models, dataset.files("test")) == []
    assert check_unseen_events(models, []) == []
    with pytest.raises(
        ModelError, match=rf"hlf was trained on {count} of these {count + 7} events"
    ):
        check_unseen_events(models, seen_and_unseen)


def test_the_training_events_of_models_that_share_them_are_counted_once(
    version: Path, dataset: FeatureDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[FeatureDataset] = []

    def record(dataset: FeatureDataset, *_: object) -> int:
        counted.append(dataset)
        return 0

    monkeypatch.setattr("pipeline.runs.trained_models.count_seen", record)
    model = find_model(version / "hlf")

    assert check_unseen_events([model, model], dataset.files("test")) == []
    assert len(counted) == 1


@pytest.mark.parametrize("pattern", ["hlf/run.json", "data/val/*"])
def test_a_model_whose_training_events_are_lost_is_named(
    tmp_path: Path, dataset: FeatureDataset, pattern: str
) -> None:
    copy = dataset._replace(folder=Path(shutil.copytree(dataset.folder, tmp_path / "data")))
    run = write_run(tmp_path / "hlf", copy)
    assert find_model(run).dataset == copy.folder
    next(tmp_path.glob(pattern)).unlink()

    assert check_unseen_events([find_model(run)], dataset.files("train")) == ["hlf"]


def test_the_training_events_of_an_exported_file_are_unknown(
    tmp_path: Path, dataset: FeatureDataset
) -> None:
    model = find_model(write_onnx(tmp_path / "x.onnx"))

    assert check_unseen_events([model], dataset.files("train")) == ["x"]


@pytest.mark.parametrize("move", [shutil.copytree, shutil.move])
def test_a_run_folder_that_was_moved_or_copied_knows_its_own_features(
    tmp_path: Path, dataset: FeatureDataset, move: Callable[[Path, Path], object]
) -> None:
    old, new = tmp_path / "old", tmp_path / "elsewhere" / "new"
    features = Path(shutil.copytree(dataset.folder, old / "features" / "0001"))
    write_run(old / "train" / "0001" / "hlf", dataset._replace(folder=features))
    new.parent.mkdir()
    move(old, new)

    model = find_model(new / "train" / "0001" / "hlf")

    assert model.dataset == new / "features" / "0001"
    with pytest.raises(ModelError, match="was trained on 11"):
        check_unseen_events([model], dataset.files("train"))


@pytest.mark.parametrize("argument", ["", "name="])
def test_an_empty_path_is_not_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argument: str
) -> None:
    (tmp_path / "hlf").mkdir()
    write_onnx(tmp_path / "hlf" / "model.onnx")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError, match="--model: the path is empty"):
        find_models([argument])


def test_the_description_of_a_model_stands_for_its_training(version: Path) -> None:
    folder = version / "hlf"

    assert names_of(folder / "model" / "model.json") == names_of(folder)
