"""The settings of an evaluation: rates of samples, and the mixture of backgrounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from features.settings import FeatureSettings
from models.evaluation.intervals import Efficiency
from models.evaluation.rates import Rates
from pipeline.config import Config
from pipeline.reporting.cutflow import Step
from pipeline.stages.evaluation_task import SelectionRates, make_task, rates_of_cutflow

#: Default luminosity of a trigger [1/(pb s)].
PER_PB = 0.02
CROSS_SECTIONS = {"qcd_low": 1e6, "qcd_high": 1e4, "w": 100.0, "s": 1.0}
LABELS = {"qcd_low": 0, "qcd_high": 0, "w": 1, "s": 2}


def config_of(folder: Path, samples: list[dict[str, Any]], classes: list[str]) -> Config:
    return Config.model_validate(
        {
            "run_dir": folder,
            "classes": classes,
            "samples": [{"files": [f"{sample['name']}.root"], **sample} for sample in samples],
            "evaluate": {"signal": "S"},
        }
    )


def rates_of_shares(config: Config, shares: dict[str, Efficiency]) -> Rates:
    """Rates of a selection that keeps these shares of the samples."""
    step = Step("selected", {}, {}, dict(shares))
    rates = rates_of_cutflow(config, [step], FeatureSettings()).known
    assert rates is not None
    return rates


@pytest.mark.parametrize("share", [-1e-6, 0.0])
def test_a_sample_of_negative_selected_weight_leaves_the_other_rates(
    tmp_path: Path, share: float
) -> None:
    samples = [
        {"name": name, "label": LABELS[name], "cross_section_pb": value}
        for name, value in CROSS_SECTIONS.items()
    ]
    config = config_of(tmp_path, samples, ["QCD", "W", "S"])
    shares = {name: Efficiency(0.1, 0.09, 0.11) for name in CROSS_SECTIONS}
    shares["qcd_low"] = Efficiency(share, 0.0, 2e-5)

    rates = rates_of_shares(config, shares)
    task = make_task(config, config.classes, SelectionRates(rates), FeatureSettings(), [])

    # The limit is that of the selection.
    assert rates.of_samples["qcd_low"] == pytest.approx((0.0, 1e6 * PER_PB * 2e-5))
    expected = {"QCD": 1000 * PER_PB, "W": 10 * PER_PB, "S": 0.1 * PER_PB}
    assert rates.of_classes(config.classes) == pytest.approx(expected)
    assert task.mixture.fractions == pytest.approx({0: 100 / 101, 1: 1 / 101})
    assert task.mixture.description.endswith("by rate")


def test_the_classes_of_a_sample_share_the_error_of_its_cross_section(tmp_path: Path) -> None:
    top = {"name": "top", "cross_section_pb": 100.0, "cross_section_error_pb": 20.0}
    top["label_by"] = {"flavour==0": 0, "flavour==1": 1}
    config = config_of(tmp_path, [top], ["B", "S"])
    share = Efficiency(0.5, 0.49, 0.51)

    rates = rates_of_shares(config, {"top.0": share, "top.1": share})

    for name in ("top.0", "top.1"):
        assert rates.of_samples[name] == pytest.approx((50 * PER_PB, 1 * PER_PB))
        assert rates.cross_sections[name] == ("top", 0.2)
