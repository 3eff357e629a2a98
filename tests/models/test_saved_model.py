"""Networks on disk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from feature_datasets import write_dataset
from networks import NAMES, random_events, run, small_network, small_spec
from torch import nn

from features.columns import SCALED_LIMIT
from hep_core.integrity import DamagedOutputError, file_digest, with_seal
from models.errors import DamagedModelError, ModelInputError, SavedModelError
from models.networks.hlf_settings import HlfSettings
from models.networks.registry import NETWORKS, ModelName
from models.networks.scaling_layer import Scaler
from models.saved_model import MODEL_VERSION, build, load_model, model_spec, save_model

every_network = pytest.mark.parametrize("name", NAMES)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A saved network that takes all inputs."""
    save_model(
        small_network("inclusive", dtype=torch.float32), small_spec("inclusive"), tmp_path / "model"
    )
    return tmp_path / "model"


def change(folder: Path, **values: Any) -> None:
    """Change keys of the description of a model, with a valid seal."""
    description = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(with_seal(description | values)))


def flip_bits(rng: np.random.Generator, file_bytes: bytes, num_bits: int) -> Iterator[bytearray]:
    """Copies of a file with one flipped bit each."""
    for position in rng.choice(len(file_bytes), num_bits, replace=False).tolist():
        damaged = bytearray(file_bytes)
        damaged[position] ^= 1 << int(rng.integers(8))
        yield damaged


def assert_same_weights(first: nn.Module, second: nn.Module) -> None:
    torch.testing.assert_close(dict(first.state_dict()), dict(second.state_dict()), rtol=0, atol=0)


@every_network
def test_a_saved_model_gives_the_same_numbers(tmp_path: Path, name: ModelName) -> None:
    model = small_network(name, dtype=torch.float32)
    spec = small_spec(name)._replace(
        definitions={"isolation_cone": 0.4},
        reading={"tree": "Events"},
        plugins=["own_features.py"],
        plugin_code={"feature own": "a digest"},
    )
    save_model(model, spec, tmp_path / "model")

    loaded, loaded_spec = load_model(tmp_path / "model")

    events = random_events([3, 1, 5], dtype=torch.float32)
    assert torch.equal(run(model, events), run(loaded, events))
    assert loaded_spec == spec
    assert type(loaded) is type(model)


def test_a_model_trained_in_double_precision_is_loaded_in_single(tmp_path: Path) -> None:
    model = small_network("inclusive")
    save_model(model, small_spec("inclusive"), tmp_path / "model")

    loaded, _ = load_model(tmp_path / "model")

    assert {tensor.dtype for tensor in loaded.state_dict().values()} == {torch.float32}
    outputs = run(loaded, random_events([4], dtype=torch.float32))
    expected = run(model, random_events([4]))
    torch.testing.assert_close(outputs, expected.float(), rtol=1e-4, atol=1e-4)


@every_network
def test_a_spec_takes_the_scalers_of_its_inputs_from_the_dataset(
    tmp_path: Path, name: ModelName
) -> None:
    dataset = write_dataset(tmp_path / "data", rows={"train": [20], "val": [5], "test": [5]})

    spec = model_spec(NETWORKS[name](), dataset)

    assert spec.classes == dataset.classes
    assert set(spec.scalers) == set(NETWORKS[name].inputs) - {"num_particles"}
    for column, scaler in spec.scalers.items():
        stored = dataset.scaler()[column]
        assert scaler == Scaler(stored["mean"], stored["std"], stored["log_above"], SCALED_LIMIT)
    assert build(spec).inputs == NETWORKS[name].inputs


def test_a_model_of_an_earlier_version_keeps_its_linear_scaling(folder: Path) -> None:
    scalers = json.loads((folder / "model.json").read_text())["scalers"]
    expected = {}
    for name, scaler in scalers.items():
        scalers[name] = {"mean": scaler["mean"], "std": scaler["std"]}
        expected[name] = Scaler(scaler["mean"], scaler["std"])
    change(folder, scalers=scalers)

    _, spec = load_model(folder)

    assert spec.scalers == expected


def test_a_dataset_without_the_scaler_is_refused(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", rows={"train": [5], "val": [5], "test": [5]})
    scaler = dataset.scaler()
    del scaler["particles"]
    (dataset.folder / "scaler.json").write_text(json.dumps(scaler))

    assert set(model_spec(HlfSettings(), dataset).scalers) == {"hlf"}
    with pytest.raises(ModelInputError, match=r"no scaler for \['particles'\]"):
        model_spec(NETWORKS["inclusive"](), dataset)


@pytest.mark.parametrize("file", ["weights.pt", "model.json"])
@pytest.mark.parametrize("share", [0, 0.3, 0.95])
def test_files_that_were_cut_off_are_refused(folder: Path, file: str, share: float) -> None:
    file_bytes = (folder / file).read_bytes()
    (folder / file).write_bytes(file_bytes[: int(share * len(file_bytes))])

    with pytest.raises(
        SavedModelError, match=r"no readable model|weights\.pt is not what was written"
    ):
        load_model(folder)


@pytest.mark.parametrize("key", ["settings", "classes", "inputs", "scalers"])
@pytest.mark.parametrize("value", [None, {"hlf": {"mean": [0.0]}}])
def test_a_description_that_was_tampered_with_is_refused(
    folder: Path, key: str, value: Any
) -> None:
    change(folder, **{key: value})

    with pytest.raises(SavedModelError, match="no usable model"):
        load_model(folder)


def test_weights_of_another_network_are_refused(folder: Path) -> None:
    torch.save(small_network("hlf", dtype=torch.float32).state_dict(), folder / "weights.pt")
    change(folder, weights=[file_digest(folder / "weights.pt")])

    with pytest.raises(SavedModelError, match="no usable model"):
        load_model(folder)


def test_weights_of_another_training_of_the_same_network_are_refused(
    folder: Path, tmp_path: Path
) -> None:
    network = small_network("inclusive", seed=2, dtype=torch.float32)
    save_model(network, small_spec("inclusive"), tmp_path / "other")
    (tmp_path / "other" / "weights.pt").replace(folder / "weights.pt")

    with pytest.raises(DamagedModelError, match=r"weights\.pt is not what was written") as caught:
        load_model(folder)

    assert isinstance(caught.value, DamagedOutputError)
    assert caught.value.path == str(folder / "weights.pt")


def test_a_lack_of_memory_is_no_fault_of_a_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(
            "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"
        )

    monkeypatch.setattr(torch, "load", fail)

    with pytest.raises(RuntimeError, match="allocate memory"):
        load_model(folder)


@pytest.mark.parametrize("file", ["weights.pt", "model.json"])
def test_each_flipped_bit_of_a_model_is_refused_or_changes_nothing(folder: Path, file: str) -> None:
    model, spec = load_model(folder)
    file_bytes = (folder / file).read_bytes()
    refusals = []
    for damaged in flip_bits(np.random.default_rng(seed=5), file_bytes, 60):
        (folder / file).write_bytes(damaged)

        try:
            loaded, loaded_spec = load_model(folder)
        except SavedModelError as error:
            refusals.append(str(error))
        else:
            # The bit is in the name of the seal, or in a digit behind those that count.
            assert loaded_spec == spec
            assert_same_weights(loaded, model)
    assert any("not what was written" in message for message in refusals)


def test_a_digit_of_the_description_is_refused(folder: Path) -> None:
    path = folder / "model.json"
    text = path.read_text()
    changed = text.replace("0.3", "0.4", 1).replace("0.2", "0.9", 1).replace("1.0", "9.0", 1)
    assert changed != text
    path.write_text(changed)

    with pytest.raises(SavedModelError, match=r"model\.json is not what was written"):
        load_model(folder)


def test_a_kill_between_the_files_of_a_better_model_leaves_the_old_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, _ = load_model(folder)
    better = small_network("inclusive", seed=2, dtype=torch.float32)
    replace = Path.replace

    def replace_or_be_killed(path: Path, target: Path) -> Path:
        if Path(target).name == "weights.pt":
            raise KeyboardInterrupt
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", replace_or_be_killed)
    with pytest.raises(KeyboardInterrupt):
        save_model(better, small_spec("inclusive"), folder)

    loaded, _ = load_model(folder)
    assert_same_weights(loaded, old)


def test_a_model_of_an_earlier_release_is_read(folder: Path) -> None:
    description = json.loads((folder / "model.json").read_text())
    del description["seal"], description["weights"]
    (folder / "model.json").write_text(json.dumps(description))

    _, spec = load_model(folder)

    assert spec == small_spec("inclusive")


def test_another_version_is_refused(folder: Path) -> None:
    change(folder, version=MODEL_VERSION - 1)

    with pytest.raises(
        SavedModelError, match=f"version {MODEL_VERSION - 1}; this code reads {MODEL_VERSION}"
    ):
        load_model(folder)


@pytest.mark.parametrize("column", ["hlf", "particles"])
@pytest.mark.parametrize("label", ["names", "units"])
def test_other_features_or_units_are_refused(folder: Path, column: str, label: str) -> None:
    inputs = json.loads((folder / "model.json").read_text())["inputs"]
    inputs[column][label][0] = "something else"
    change(folder, inputs=inputs)

    with pytest.raises(SavedModelError, match="other features"):
        load_model(folder)


class Boom:
    """Runs code when unpickled."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("boom"),)


def test_weights_that_would_run_code_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    torch.save({"output.weight": Boom()}, folder / "weights.pt")

    with pytest.raises(SavedModelError):
        load_model(folder)

    assert not (folder / "boom").exists()
