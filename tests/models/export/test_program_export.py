"""Networks as programs of torch."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from feature_datasets import made_particles
from networks import NAMES, made_network, made_spec, random_events, run

from features.columns import NUM_HLF
from models.export.metadata import Provenance, metadata
from models.export.program_export import ProgramClassifier, export_program
from models.networks.classifier import Classifier
from models.networks.registry import ModelName

every_network = pytest.mark.parametrize("name", NAMES)
Exported = Callable[[ModelName], Path]
PROVENANCE = Provenance("some run")

#: Runs a program on tensors, both from files; knows torch and nothing else.
WITHOUT_THIS_PROJECT = """
import sys, torch
program, inputs, outputs = sys.argv[1:]
probability = torch.export.load(program).module()(*torch.load(inputs))
assert not any(name.split(".")[0] in ("models", "features") for name in sys.modules)
torch.save(probability.detach(), outputs)
"""


def expected_of(model: Classifier, events: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.softmax(run(model, events), dim=1).detach()


def events_of(lengths: list[int]) -> dict[str, np.ndarray]:
    """Events as they lie in the features Parquet."""
    rng = np.random.default_rng(1)
    particles = made_particles(rng, np.zeros(len(lengths), dtype=int), np.array(lengths))
    return {
        "hlf": rng.normal(100, 50, (len(lengths), NUM_HLF)).astype(np.float32),
        "particles": particles.reshape(len(lengths), -1),
        "num_particles": np.array(lengths, dtype=np.int32),
    }


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """The program of a network in double precision, made once: an export takes a second."""

    @cache
    def export(name: ModelName) -> Path:
        path = tmp_path_factory.mktemp("programs") / "model.pt2"
        export_program(made_network(name), made_spec(name), path, PROVENANCE)
        return path

    return export


@every_network
@pytest.mark.slow
def test_programs_take_any_batch_and_any_list(exported: Exported, name: ModelName) -> None:
    program = torch.export.load(exported(name)).module()
    model = made_network(name).float()
    for lengths in ([1], [0], [3, 2], [5, 0, 801], [9] * 40):
        events = random_events(lengths, dtype=torch.float32)
        found = program(*(events[column] for column in model.inputs))
        torch.testing.assert_close(found.detach(), expected_of(model, events), rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["particles", "inclusive"])
def test_a_program_does_not_grow_with_the_list_and_holds_one_gru(exported: Exported, name: ModelName) -> None:
    targets = [str(node.target) for node in torch.export.load(exported(name)).graph.nodes]
    assert targets.count("aten.gru.input") == 1


@pytest.mark.slow
def test_a_program_runs_without_this_project(exported: Exported, tmp_path: Path) -> None:
    model, events = made_network("inclusive").float(), random_events([4, 2], dtype=torch.float32)
    shutil.copy(exported("inclusive"), tmp_path)
    torch.save([events[column] for column in model.inputs], tmp_path / "inputs.pt")
    script = tmp_path / "script.py"
    script.write_text(WITHOUT_THIS_PROJECT)
    done = subprocess.run(
        [sys.executable, "-W", "error", script, "model.pt2", "inputs.pt", "outputs.pt"],
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    torch.testing.assert_close(torch.load(tmp_path / "outputs.pt"), expected_of(model, events), rtol=0, atol=1e-6)


@pytest.mark.slow
@every_network
def test_a_program_does_not_say_where_it_was_made(exported: Exported, name: ModelName) -> None:
    path = exported(name)
    content = path.read_bytes()
    folders = [path.parent, Path(__file__).parents[3], Path(torch.__file__).parents[1]]
    assert not [folder for folder in folders if str(folder).encode() in content]


@pytest.mark.slow
@every_network
def test_a_program_that_is_loaded_has_the_metadata_and_the_networks_probabilities(
    exported: Exported, name: ModelName
) -> None:
    model = made_network(name).float()
    found = ProgramClassifier(exported(name))
    assert found.metadata == metadata(made_spec(name), model.inputs, PROVENANCE)
    assert found.metadata["run_id"] == "some run"
    columns = events_of([3, 0, 801])
    np.testing.assert_allclose(found.probabilities(columns), model.probabilities(columns), rtol=0, atol=1e-6)


def test_an_export_that_fails_leaves_the_file_of_before_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.pt2"
    path.write_bytes(b"before")

    def save(*_: object, **__: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(torch.export, "save", save)
    with pytest.raises(OSError, match="disk full"):
        export_program(made_network("hlf"), made_spec("hlf"), path)
    assert [each.name for each in tmp_path.iterdir()] == ["model.pt2"]
    assert path.read_bytes() == b"before"
