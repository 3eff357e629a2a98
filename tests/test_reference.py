"""The generated reference and `full.yaml` are complete."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from typer.main import get_command

from features.columns import PARTICLE_FEATURE_NAMES, hlf_names
from pipeline.cli import app
from pipeline.config import load_config
from training.algorithms.registry import METHODS

CHECKOUT = Path(__file__).resolve().parents[1]
FULL_CONFIG = CHECKOUT / "pipeline" / "configs" / "full.yaml"


@pytest.fixture(scope="module")
def reference() -> Iterator[ModuleType]:
    """The module docs/reference.py, which is in no package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(CHECKOUT / "docs")
        yield importlib.import_module("reference")


def rows_of(page: str) -> list[list[str]]:
    return [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]


def keys_in(section: dict[str, Any], prefix: str = "") -> set[str]:
    """Dotted keys of all values of a section."""
    keys = set()
    for name, value in section.items():
        if isinstance(value, dict) and value:
            keys |= keys_in(value, f"{prefix}{name}.")
        else:
            keys.add(f"{prefix}{name}")
    return keys


def test_every_key_has_its_default_values_and_meaning(reference: ModuleType) -> None:
    rows = {row[0].strip("`"): row for row in rows_of(reference.config_page())}

    assert rows["train.batch_size"][1:3] == ["`32`", "integer, at least 1"]
    assert rows["samples[].files"][1] == "required"
    assert rows["train.slowmo"][1] == "not set"
    assert rows["train.slowmo.tau"][1] == "`12`"
    assert "`downsample`: Drop training events of the larger classes" in rows["features.balance"][3]
    assert rows["train.schedule.decay"][2] == "`constant`, `step`, `cosine`"
    assert "model.particles.gru_width" in rows
    for row in rows.values():
        assert len(row) == 4
        assert row[3]


def test_a_row_names_all_methods_whose_key_is_the_same_and_no_others(
    reference: ModuleType,
) -> None:
    prefix = "`train.algorithm."
    rows = [row for row in rows_of(reference.config_page()) if row[0].startswith(prefix)]

    # Methods may have a key of the same name with other defaults or meanings.
    defaults_of_delta = {row[1] for row in rows if row[0] == f"{prefix}delta`"}
    assert defaults_of_delta == {"`0.99`", "`0.8`"}
    methods_by_field: dict[tuple[str, str], set[str]] = {}
    for method_name, method in METHODS.items():
        for key, field in reference.schema_of(method.settings)["properties"].items():
            if key != "name":
                methods_by_field.setdefault((key, str(field)), set()).add(method_name)
    expected = [(f"{prefix}{key}`", methods) for (key, _), methods in methods_by_field.items()]
    actual = []
    for row in rows:
        _, _, methods_text = row[3].rpartition("(")
        actual.append((row[0], set(re.findall(r"`([^`]+)`", methods_text))))
    assert sorted(map(str_of_row, actual)) == sorted(map(str_of_row, expected))
    assert max(len(methods) for _, methods in actual) > 1


def str_of_row(row: tuple[str, set[str]]) -> str:
    key, methods = row
    return f"{key}: {sorted(methods)}"


def test_the_config_that_lists_all_keys_has_each_documented(reference: ModuleType) -> None:
    full = yaml.safe_load(FULL_CONFIG.read_text(encoding="utf-8"))
    documented = {row[0].strip("`") for row in rows_of(reference.config_page())}

    assert keys_in(full) - documented == set()


def test_full_yaml_is_generated_from_the_settings(
    reference: ModuleType, update_golden: bool
) -> None:
    if update_golden:
        FULL_CONFIG.write_text(reference.full_config(), encoding="utf-8")

    assert FULL_CONFIG.read_text(encoding="utf-8") == reference.full_config(), (
        "pytest --update-golden tests/test_reference.py"
    )


def test_every_command_is_documented_with_its_own_options(reference: ModuleType) -> None:
    page = reference.commands_page()

    headings = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert set(headings) == set(get_command(app).commands)  # type: ignore[attr-defined]
    assert page.count("--set A.B=C") == 1
    assert "`--verify`" in page
    assert "has moved" not in page


def test_every_feature_is_documented(reference: ModuleType) -> None:
    page = reference.features_page()

    for name in (*hlf_names(), *PARTICLE_FEATURE_NAMES):
        assert f"| `{name}` |" in page
    assert "| `tracks.pt` | `EFlowTrack.PT` | float32 | GeV |" in page


def test_every_algorithm_is_documented_by_its_formulas(reference: ModuleType) -> None:
    page = reference.algorithms_page()

    for name in METHODS:
        assert f"## {name}\n" in page
    assert "x_i <- average - gamma * g_i(snapshot)" in page
    assert "Args:" not in page


def test_the_command_of_every_algorithm_trains_with_it(reference: ModuleType) -> None:
    page = reference.algorithms_page()
    commands = re.findall(r"^.* -m pipeline train .*$", page, re.MULTILINE)

    assert len(commands) == len(METHODS)
    for name, command in zip(METHODS, commands, strict=True):
        config_name = re.search(r"--config (\S+)", command)
        assert config_name
        config = load_config(config_name[1], re.findall(r"--set (\S+)", command))
        assert config.train.algorithm.name == name
        assert (config.train.workers == 1) == METHODS[name].traits.single_worker
