"""The registered networks, and the section `model` of the config."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import ValidationError
from typing_extensions import override

from models.networks.hlf_settings import HlfSettings
from models.networks.inclusive_settings import InclusiveSettings
from models.networks.network_settings import NetworkSettings, network
from models.networks.particles_settings import ParticlesSettings
from models.networks.registry import (
    NETWORKS,
    networks_settings,
    settings_from_json,
    settings_of,
)


def test_the_config_has_a_section_for_each_network_with_its_defaults() -> None:
    section = networks_settings()()

    assert list(type(section).model_fields) == ["names", *NETWORKS]
    for name, settings in NETWORKS.items():
        assert settings.name == name
        assert section.of(name) == settings()


def test_the_section_has_networks_that_are_registered_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(NETWORKS, "_entries", dict(NETWORKS))

    @network("later")
    class LaterSettings(NetworkSettings):
        inputs = ("hlf",)
        width: int = 3

        @override
        def build(self, scalers: Mapping[str, Any], num_classes: int) -> Any:
            return HlfSettings().build(scalers, num_classes)

    section = networks_settings().model_validate({"names": ["later"], "later": {"width": 5}})

    assert section.of("later") == LaterSettings(width=5)


def test_names_of_networks_are_checked() -> None:
    section = networks_settings()

    with pytest.raises(ValidationError, match=f"only {', '.join(NETWORKS)}. Did you mean 'hlf'"):
        section(names=["hfl"])
    with pytest.raises(ValidationError, match="'hlf' is given twice"):
        section(names=["hlf", "hlf"])


def test_a_search_is_needed_only_for_a_network_that_is_trained() -> None:
    section, searched = networks_settings(), {"hlf": {"from_gridsearch": True}}

    assert section.model_validate(searched).searched
    assert not section.model_validate({"names": ["particles"], **searched}).searched
    assert not section(names=list(NETWORKS)).searched


@pytest.mark.parametrize("name", NETWORKS)
def test_settings_survive_a_round_trip(name: str) -> None:
    settings = NETWORKS[name]()

    assert settings_from_json(settings.to_json()) == settings
    assert settings_of({"name": name}) == settings


def test_the_origin_of_the_widths_is_not_saved() -> None:
    settings = HlfSettings(hidden=[5], from_gridsearch=True)

    assert settings.to_json() == {"name": "hlf", "hidden": [5]}


@pytest.mark.parametrize("settings", [ParticlesSettings(), InclusiveSettings()])
def test_saved_settings_without_a_key_are_refused(settings: NetworkSettings) -> None:
    """What other code did without the key need not be the default of this code."""
    saved = settings.to_json()
    without_key = {key: value for key, value in saved.items() if key != "read_from"}

    expected = f"settings of {settings.name} lack read_from: other code wrote them"
    with pytest.raises(ValueError, match=expected):
        settings_from_json(without_key)
    with pytest.raises(ValidationError, match="hidden"):
        settings_from_json({**saved, "hidden": [50]})


@pytest.mark.slow
@pytest.mark.parametrize("module", ["models.networks.registry", "pipeline.config", "pipeline.cli"])
def test_the_config_is_read_without_torch(module: str) -> None:
    """Importing torch takes a second, which `plan`, `status` and `--help` do not need."""
    program = f"import sys, {module}; print('torch' in sys.modules)"

    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert result.stdout == "False\n"
