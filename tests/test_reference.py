"""The generated reference and `full.yaml` are complete."""

from __future__ import annotations

import importlib.util
import itertools
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from features.columns import PARTICLE_FEATURE_NAMES, hlf_names
from pipeline.cli import app
from pipeline.config import load_config
from training.algorithms.registry import METHODS

CHECKOUT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    """docs/reference.py, which is no module of a package."""
    spec = importlib.util.spec_from_file_location("reference", CHECKOUT / "docs" / "reference.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def rows_of(page: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]


def keys_in(document: dict[str, Any], prefix: str = "") -> set[str]:
    actual = set()
    for name, value in document.items():
        actual |= (
            keys_in(value, f"{prefix}{name}.")
            if isinstance(value, dict) and value
            else {prefix + name}
        )
    return actual


def test_every_key_has_its_default_values_and_meaning(reference: ModuleType) -> None:
    rows = {row[0].strip("`"): row for row in rows_of(reference.config_page())}
    assert rows["train.batch_size"][1:3] == ["`32`", "integer, at least 1"]
    assert rows["samples[].files"][1] == "required"
    assert rows["train.slowmo"][1] == "not set"
    assert rows["train.slowmo.tau"][1] == "`12`"
    assert "`downsample`: Drop training events of the larger classes" in rows["features.balance"][3]
    assert rows["train.schedule.decay"][2] == "`constant`, `step`, `cosine`"
    assert "model.particles.gru_width" in rows
    # Methods may have a key of the same name with other defaults or meanings.
    of_methods = [
        row for row in rows_of(reference.config_page()) if row[0].startswith("`train.algorithm.")
    ]
    assert {row[1] for row in of_methods if row[0] == "`train.algorithm.delta`"} == {
        "`0.99`",
        "`0.8`",
    }
    # A row names all methods whose key is the same in default, values and meaning, and no others.
    having: dict[str, list[str]] = {}
    for name, method in METHODS.items():
        for key, field in reference.schema_of(method.settings)["properties"].items():
            if key != "name":
                having.setdefault(f"{key} {field}", [f"train.algorithm.{key}"]).append(name)
    displayed = [
        [row[0].strip("`"), *re.findall(r"`([^`]+)`", row[3].rpartition("(")[2])]
        for row in of_methods
    ]
    assert sorted(map(sorted, displayed)) == sorted(map(sorted, having.values()))
    assert max(map(len, displayed)) > 2
    assert [key for key, row in rows.items() if len(row) < 4 or not row[3]] == []


def test_every_key_of_the_config_that_lists_all_is_there(reference: ModuleType) -> None:
    full = yaml.safe_load(
        (CHECKOUT / "pipeline" / "configs" / "full.yaml").read_text(encoding="utf-8")
    )
    assert keys_in(full) - {row[0].strip("`") for row in rows_of(reference.config_page())} == set()


def test_full_yaml_is_generated_from_the_settings(
    reference: ModuleType, update_golden: bool
) -> None:
    path = CHECKOUT / "pipeline" / "configs" / "full.yaml"
    if update_golden:
        path.write_text(reference.full_config(), encoding="utf-8")
    assert path.read_text(encoding="utf-8") == reference.full_config(), (
        "pytest --update-golden tests/test_reference.py"
    )


def test_every_command_and_its_own_options(reference: ModuleType) -> None:
    page = reference.commands_page()
    names = {
        command.name or command.callback.__name__.replace("_", "-")
        for command in app.registered_commands
    }
    assert {
        line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")
    } == names
    assert page.count("--set A.B=C") == 1
    assert "`--verify`" in page
    assert "has moved" not in page


def test_every_feature(reference: ModuleType) -> None:
    page = reference.features_page()
    assert [
        name for name in (*hlf_names(), *PARTICLE_FEATURE_NAMES) if f"| `{name}` |" not in page
    ] == []
    assert "| `tracks.pt` | `EFlowTrack.PT` | float32 | GeV |" in page


def test_every_algorithm_says_what_it_computes(reference: ModuleType) -> None:
    page = reference.algorithms_page()
    assert [name for name in METHODS if f"## {name}\n" not in page] == []
    assert "x_i <- average - gamma * g_i(snapshot)" in page
    assert "Args:" not in page


def test_the_command_of_every_algorithm_trains_with_it(reference: ModuleType) -> None:
    page = reference.algorithms_page()
    commands = [line.strip() for line in page.splitlines() if " -m pipeline train " in line]
    assert len(commands) == len(METHODS)
    for name, command in zip(METHODS, commands, strict=True):
        message = command.split()
        selected = [
            word for state_before, word in itertools.pairwise(message) if state_before == "--set"
        ]
        config = load_config(message[message.index("--config") + 1], selected)
        assert config.train.algorithm.name == name
        assert (config.train.workers == 1) == METHODS[name].traits.single_worker
