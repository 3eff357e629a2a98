"""The shipped example of signal against background on NanoAOD, by its one command."""

from __future__ import annotations

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import uproot
from lent_spark import command

from pipeline.machine.spark_session import SparkProvider

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "examples" / "nanoaod"
FILES = sorted(FOLDER.glob("*.root"))


def test_the_bundled_events_are_those_of_their_script(tmp_path: Path) -> None:
    spec = spec_from_file_location("make_events", FOLDER / "make_events.py")
    assert spec is not None
    assert spec.loader is not None
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    script.main(tmp_path)
    assert [each.name for each in FILES] == ["data.root", "ttbar.root", "wjets.root"]
    for path in FILES:
        with (
            uproot.open({path: "Events"}) as bundled,
            uproot.open({tmp_path / path.name: "Events"}) as created,
        ):
            assert bundled.arrays().tolist() == created.arrays().tolist()
        assert path.stat().st_size < 100_000


@pytest.mark.minutes
@pytest.mark.end_to_end
@pytest.mark.timeout(900)
def test_signal_against_background_on_nanoaod_by_one_command(
    provider: SparkProvider, tmp_path: Path
) -> None:
    result = command(
        provider, "run", "--config", FOLDER / "config.yaml", "--set", f"run_dir={tmp_path}"
    )
    assert result.exit_code == 0, result.output
    (metrics,) = (json.loads(path.read_text()) for path in tmp_path.glob("evaluate/*/metrics.json"))
    assert (metrics["classes"], metrics["signals"]) == (["background", "signal"], {"signal": 1.0})
    for run in metrics["runs"].values():
        assert run["auc"]["signal"]["value"] > 0.9
        measurable = {each["wanted"]: each["measurable"] for each in run["background_points"]}
        assert measurable == {0.1: True, 0.001: False}
        (point,) = (each for each in run["background_points"] if each["measurable"])
        assert (
            0.6 < point["signal"]["low"] <= point["signal"]["value"] <= point["signal"]["high"] < 1
        )
        # The data are a mixture of both samples, so they agree with the simulation; the score is
        # blinded by default.
        data = run["data"]
        assert (300 < data["num_events"] < 1000, data["blind_above"]) == (True, 0.5)
        assert data["copies"] == {"data": 0, "simulation": 0}
        assert min(each["p_value"] for each in data["chi_square"].values()) > 1e-4
    # At equal selection the events would be as the cross-sections; more of the signal is selected.
    events = metrics["events_before"]
    assert 0 < events["background"] / 600 < events["signal"] / 366
    assert metrics["luminosity"] == "1.2 pb⁻¹"
