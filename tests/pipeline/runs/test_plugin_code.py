"""The code of plugins that belongs to a model, and its check where features are computed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from feature_datasets import write_dataset
from networks import small_network, small_spec

from features.functions import FUNCTIONS, FeatureFunction
from features.settings import FeatureSettings
from hep_core import plugins
from models.errors import PluginCodeError
from models.export.onnx_export import export_onnx
from models.networks.network_settings import NETWORKS, NetworkSettings
from models.prediction import Candidate
from models.saved_model import ModelSpec, model_spec, save_model
from pipeline.runs import code_meaning
from pipeline.runs.code_meaning import code_digests
from pipeline.runs.plugin_code import (
    check_plugin_code,
    feature_code,
    network_code,
    without_network,
)
from pipeline.runs.trained_models import FoundModel
from pipeline.scoring import load_classifier

CODE = '''
"""What an analysis adds."""
from models.networks.hlf_settings import HlfSettings


def lepton_share(events):
    """Of the transverse energy."""
    return events.leptons.pt / (events.met + 1)


class OwnSettings(HlfSettings):
    name = "own"
'''
COMMENTED = CODE.replace("Of the", "# As in the paper. Of the").replace("+ 1)", "+ 1)  # in GeV")
CHANGED = CODE.replace("+ 1)", "+ 2)")
READING = {"min_lepton_pt": 25.0}


def write(path: Path, code: str) -> None:
    """Write the code of a plugin, as if a new process had loaded it."""
    path.write_text(code)
    code_meaning._loaded_plugins.clear()


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a plugin that computes a feature and has a network, `own`."""
    monkeypatch.setattr(plugins, "_loaded", {})
    monkeypatch.setenv(plugins.VARIABLE, "")
    path = tmp_path / "shares.py"
    write(path, CODE)
    plugins.load([str(path)])
    module = sys.modules["plugin_shares"]
    feature = FeatureFunction(module.lepton_share, is_plugin=True)
    monkeypatch.setitem(FUNCTIONS, "lepton_share", feature)
    monkeypatch.setitem(NETWORKS._entries, "own", module.OwnSettings)
    yield path
    del sys.modules["plugin_shares"]
    code_meaning._loaded_plugins.clear()


def found(name: str, plugin_code: dict[str, str]) -> FoundModel:
    """A model that is never asked, with the digests of its training."""
    network: Any = None
    return FoundModel(Candidate(name, network), [], {}, None, {}, plugin_code)


def trained_spec(settings: NetworkSettings, folder: Path) -> ModelSpec:
    """The specification of a network whose features are computed by the code of now."""
    rows = {"train": [6], "val": [4], "test": [7]}
    dataset = write_dataset(folder, rows=rows)._replace(plugin_code=feature_code())
    spec = model_spec(settings, dataset, network_code(settings.name))
    definitions = FeatureSettings().model_dump(mode="json")
    return spec._replace(definitions=definitions, reading=READING)


@pytest.fixture
def trained(plugin: Path, tmp_path: Path) -> Path:
    """The folder of a training of the network `hlf` with the feature of the plugin."""
    assert plugin.exists()
    spec = trained_spec(small_spec("hlf").settings, tmp_path / "features")
    (tmp_path / "hlf").mkdir()
    model = small_network(spec, dtype=torch.float32)
    save_model(model, spec, tmp_path / "hlf" / "model")
    export_onnx(model, spec, tmp_path / "hlf" / "model.onnx")
    return tmp_path / "hlf"


@pytest.mark.parametrize("file", ["model", "model.onnx"])
def test_a_model_whose_plugin_changed_scores_no_events(
    plugin: Path, trained: Path, file: str
) -> None:
    load_classifier(trained / file)
    write(plugin, COMMENTED)
    load_classifier(trained / file)

    write(plugin, CHANGED)

    with pytest.raises(PluginCodeError) as caught:
        load_classifier(trained / file)
    message = str(caught.value)
    assert f"used other code of the plugin {plugin} (feature lepton_share)" in message
    assert "train again" in message
    assert "or bring back that code" in message


def test_only_what_the_model_reads_counts(plugin: Path, tmp_path: Path) -> None:
    particles = trained_spec(small_spec("particles").settings, tmp_path / "particles")
    own = trained_spec(NETWORKS["own"](), tmp_path / "own")

    (digest,) = set(feature_code().values())
    assert particles.plugin_code == {}
    assert own.plugin_code == {"feature lepton_share": digest, "network own": digest}
    assert network_code("hlf") == {}
    assert plugin.exists()


def test_a_changed_network_of_a_plugin_is_refused_but_not_its_exported_file(
    plugin: Path, tmp_path: Path
) -> None:
    dataset = write_dataset(tmp_path / "features", rows={"train": [6], "val": [4], "test": [7]})
    code = {"network own": network_code("own")["network own"]}
    of_training = found("hlf", code)
    exported = without_network(code)

    write(plugin, CHANGED)

    # Its features are those of our code, and the network is built now, also for old features.
    for features in (None, dataset):
        with pytest.raises(PluginCodeError, match="network own"):
            check_plugin_code([of_training], features)
    check_plugin_code([found("hlf", exported)])


def test_features_on_disk_count_by_the_code_that_computed_them(
    plugin: Path, tmp_path: Path
) -> None:
    dataset = write_dataset(tmp_path / "features", rows={"train": [6], "val": [4], "test": [7]})
    code_of_training = feature_code()
    same_features = dataset._replace(plugin_code=code_of_training)
    model = found("hlf", code_of_training)
    write(plugin, CHANGED)
    other_features = dataset._replace(plugin_code=feature_code())

    check_plugin_code([model], same_features)
    # Neither features nor a model of an earlier release say by which code they were made.
    check_plugin_code([model], dataset)
    check_plugin_code([found("hlf", {})], other_features)
    with pytest.raises(PluginCodeError, match="feature lepton_share"):
        check_plugin_code([model], other_features)


def test_a_feature_that_no_file_defines_now_is_not_that_of_the_plugin(
    plugin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = found("hlf", feature_code())
    monkeypatch.setitem(FUNCTIONS, "lepton_share", FeatureFunction(found, is_plugin=True))

    with pytest.raises(PluginCodeError, match=r"of the plugin \(feature lepton_share"):
        check_plugin_code([model])
    assert plugin.exists()


@pytest.mark.parametrize(
    "code_now",
    [feature_code, lambda: network_code("own"), lambda: code_digests(["plugin_shares"])],
    ids=["features", "network", "freshness"],
)
def test_the_code_that_a_process_has_imported_counts(
    plugin: Path, code_now: Callable[[], dict[str, str]]
) -> None:
    # Nothing asked for the digests between the import and the change.
    plugin.write_text(CHANGED)
    code_after_change = code_now()

    write(plugin, CODE)

    assert code_now() == code_after_change
