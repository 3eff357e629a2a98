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
from models.networks.registry import NETWORKS, NetworksSettings, settings_from_json, settings_of


def test_the_config_has_a_section_for_each_network_with_its_defaults() -> None:
    networks = NetworksSettings()
    assert list(NetworksSettings.model_fields) == ["names", *NETWORKS]
    assert [networks.of(name) for name in NETWORKS] == [
        network_kind() for network_kind in NETWORKS.values()
    ]
    assert list(NETWORKS) == [network_kind.name for network_kind in NETWORKS.values()]


def test_names_of_networks_are_checked() -> None:
    with pytest.raises(ValidationError, match=f"only {', '.join(NETWORKS)}. Did you mean 'hlf'"):
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


@pytest.mark.parametrize("network_kind", [ParticlesSettings, InclusiveSettings])
def test_networks_of_other_code_are_not_read_with_the_defaults_of_this_one(
    network_kind: type[NetworkSettings],
) -> None:
    written = network_kind().to_json()
    old = {key: value for key, value in written.items() if key != "read_from"}
    with pytest.raises(
        ValueError, match=f"settings of {network_kind.name} lack read_from: other code wrote them"
    ):
        settings_from_json(old)
    with pytest.raises(ValidationError, match="hidden"):
        settings_from_json({**written, "hidden": [50]})


def test_a_network_by_its_name_had_the_settings_of_earlier_code() -> None:
    """Of a workload: `{name: particles}` read the lists from the start, and saw the directions of the detector."""
    assert settings_of({"name": "particles"}) == ParticlesSettings()


@pytest.mark.slow
@pytest.mark.parametrize("module", ["models.networks.registry", "pipeline.config", "pipeline.cli"])
def test_the_config_is_read_without_torch(module: str) -> None:
    """Importing torch takes a second, which `plan`, `status` and `--help` have no need of."""
    message = f"import sys, {module}; print('torch' in sys.modules)"
    completed = subprocess.run(
        [sys.executable, "-c", message], capture_output=True, text=True, check=True
    )
    assert completed.stdout == "False\n"
