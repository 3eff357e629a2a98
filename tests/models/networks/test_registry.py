"""The networks there are, and what the config makes of them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from pydantic import ValidationError

from models.networks.hlf_settings import HlfSettings
from models.networks.inclusive_settings import InclusiveSettings
from models.networks.network_settings import NetworkSettings
from models.networks.particles_settings import ParticlesSettings
from models.networks.registry import NETWORKS, NetworksSettings, settings_from_json


def test_the_config_has_a_section_for_each_network_with_its_defaults() -> None:
    networks = NetworksSettings()
    assert list(NetworksSettings.model_fields) == ["names", *NETWORKS]
    assert [networks.of(name) for name in NETWORKS] == [kind() for kind in NETWORKS.values()]
    assert list(NETWORKS) == [kind.name for kind in NETWORKS.values()]


def test_names_of_networks_are_checked() -> None:
    *others, last = (f"'{name}'" for name in NETWORKS)
    with pytest.raises(ValidationError, match=f"{', '.join(others)} or {last}"):
        NetworksSettings(names=["hfl"])
    with pytest.raises(ValidationError, match="'hlf' is given twice"):
        NetworksSettings(names=["hlf", "hlf"])


def test_a_search_is_wanted_only_for_a_network_that_is_trained() -> None:
    searched = {"hlf": HlfSettings(from_gridsearch=True)}
    assert NetworksSettings(**searched).searched
    assert not NetworksSettings(names=["particles"], **searched).searched
    assert not NetworksSettings(names=list(NETWORKS)).searched


@pytest.mark.parametrize("name", NETWORKS)
def test_settings_survive_a_round_trip(name: str) -> None:
    assert settings_from_json(NETWORKS[name]().to_json()) == NETWORKS[name]()


def test_where_the_widths_come_from_is_not_kept() -> None:
    assert HlfSettings(hidden=[5], from_gridsearch=True).to_json() == {"name": "hlf", "hidden": [5]}


def test_settings_of_earlier_versions_hold_the_widths_of_all_networks() -> None:
    old = {"name": "inclusive", "hidden": [50, 20, 10], "gru_width": 7, "dense_width": 5}
    assert settings_from_json(old) == InclusiveSettings(gru_width=7, dense_width=5, read_from="start", frame="detector")


@pytest.mark.parametrize("kind", [ParticlesSettings, InclusiveSettings])
def test_networks_of_earlier_versions_read_from_the_start_as_they_were_trained(kind: type[NetworkSettings]) -> None:
    old = {key: value for key, value in kind().to_json().items() if key != "read_from"}
    assert settings_from_json(old) == kind(read_from="start") != kind()


@pytest.mark.slow
@pytest.mark.parametrize("module", ["models.networks.registry", "pipeline.config", "pipeline.cli"])
def test_the_config_is_read_without_torch(module: str) -> None:
    """Importing torch takes a second, which `plan`, `status` and `--help` have no need of."""
    words = f"import sys, {module}; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"
