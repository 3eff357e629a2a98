"""Networks on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from feature_datasets import write_dataset
from networks import NAMES, random_events, run, small_network, small_spec

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
    document = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(with_seal(document | values)))


@every_network
def test_a_saved_model_gives_the_same_numbers(tmp_path: Path, name: ModelName) -> None:
    model = small_network(name, dtype=torch.float32)
    of_its_training = {"definitions": {"isolation_cone": 0.4}, "reading": {"tree": "Events"}}
    saved = small_spec(name)._replace(**of_its_training, plugins=["own_features.py"])
    save_model(model, saved, tmp_path / "model")
    loaded, spec = load_model(tmp_path / "model")
    events = random_events([3, 1, 5], dtype=torch.float32)
    assert torch.equal(run(model, events), run(loaded, events))
    assert spec == saved
    assert type(loaded) is type(model)


def test_a_model_trained_in_double_precision_is_loaded_in_single(tmp_path: Path) -> None:
    model = small_network("inclusive")
    save_model(model, small_spec("inclusive"), tmp_path / "model")
    loaded, _ = load_model(tmp_path / "model")
    assert {tensor.dtype for tensor in loaded.state_dict().values()} == {torch.float32}
    single = {
        name: value.float() if value.is_floating_point() else value
        for name, value in random_events([4]).items()
    }
    torch.testing.assert_close(
        run(loaded, single), run(model, random_events([4])).float(), rtol=1e-4, atol=1e-4
    )


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
    change(
        folder,
        scalers={
            name: {key: scaler[key] for key in ("mean", "std")} for name, scaler in scalers.items()
        },
    )
    _, spec = load_model(folder)
    assert spec.scalers == {
        name: Scaler(scaler["mean"], scaler["std"]) for name, scaler in scalers.items()
    }


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
    with pytest.raises(DamagedModelError, match=r"weights\.pt is not what was written") as raised:
        load_model(folder)
    assert isinstance(raised.value, DamagedOutputError)
    assert raised.value.path == str(folder / "weights.pt")


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
    file_bytes, refusals = (folder / file).read_bytes(), list[str]()
    random = np.random.default_rng(seed=5)
    for position in random.choice(len(file_bytes), 60, replace=False).tolist():
        damaged = bytearray(file_bytes)
        damaged[position] ^= 1 << int(random.integers(8))
        (folder / file).write_bytes(damaged)
        try:
            repeated, same = load_model(folder)
        except SavedModelError as error:
            refusals.append(str(error))
        else:
            # The name of the seal, or a digit behind those that count.
            assert same == spec
            assert all(
                map(torch.equal, repeated.state_dict().values(), model.state_dict().values())
            )
    assert any("not what was written" in message for message in refusals)


def test_a_digit_of_the_description_is_refused(folder: Path) -> None:
    text = (folder / "model.json").read_text()
    (folder / "model.json").write_text(
        text.replace("0.3", "0.4", 1).replace("0.2", "0.9", 1).replace("1.0", "9.0", 1)
    )
    assert (folder / "model.json").read_text() != text
    with pytest.raises(SavedModelError, match=r"model\.json is not what was written"):
        load_model(folder)


def test_a_kill_between_the_files_of_a_better_model_leaves_the_old_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, _ = load_model(folder)
    replace = Path.replace

    def killed(path: Path, target: Path) -> Path:
        if Path(target).name == "weights.pt":
            raise KeyboardInterrupt
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        save_model(
            small_network("inclusive", seed=2, dtype=torch.float32), small_spec("inclusive"), folder
        )
    repeated, _ = load_model(folder)
    assert all(map(torch.equal, repeated.state_dict().values(), old.state_dict().values()))


def test_a_model_of_an_earlier_release_is_read(folder: Path) -> None:
    document = json.loads((folder / "model.json").read_text())
    del document["seal"], document["weights"]
    (folder / "model.json").write_text(json.dumps(document))
    assert load_model(folder)[1] == small_spec("inclusive")


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
