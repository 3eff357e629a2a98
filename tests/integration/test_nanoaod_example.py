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


def test_the_bundled_events_are_those_of_their_script(tmp_path: Path) -> None:
    spec = spec_from_file_location("make_events", FOLDER / "make_events.py")
    assert spec is not None
    assert spec.loader is not None
    script = module_from_spec(spec)
    spec.loader.exec_module(script)

    script.main(tmp_path)

    files = sorted(FOLDER.glob("*.root"))
    assert [path.name for path in files] == ["data.root", "ttbar.root", "wjets.root"]
    for path in files:
        with (
            uproot.open({path: "Events"}) as bundled,
            uproot.open({tmp_path / path.name: "Events"}) as expected,
        ):
            assert bundled.arrays().tolist() == expected.arrays().tolist()
        assert path.stat().st_size < 100_000


@pytest.mark.minutes
@pytest.mark.end_to_end
@pytest.mark.timeout(900)
def test_signal_against_background_on_nanoaod_by_one_command(
    provider: SparkProvider, tmp_path: Path
) -> None:
    config = FOLDER / "config.yaml"

    result = command(provider, "run", "--config", config, "--set", f"run_dir={tmp_path}")

    assert result.exit_code == 0, result.output
    (metrics_path,) = tmp_path.glob("evaluate/*/metrics.json")
    metrics = json.loads(metrics_path.read_text())
    assert metrics["classes"] == ["background", "signal"]
    assert metrics["signals"] == {"signal": 1.0}
    assert metrics["luminosity"] == "1.2 pb⁻¹"
    # At equal selection the events would be as the cross-sections; more of the signal is selected.
    events = metrics["events_before"]
    assert 0 < events["background"] / 600 < events["signal"] / 366

    for run in metrics["runs"].values():
        assert run["auc"]["signal"]["value"] > 0.9
        points = {point["wanted"]: point for point in run["background_points"]}
        assert points.keys() == {0.1, 0.001}
        assert points[0.1]["measurable"]
        assert not points[0.001]["measurable"]
        signal = points[0.1]["signal"]
        assert 0.6 < signal["low"] <= signal["value"] <= signal["high"] < 1

        # The data are a mixture of both samples, so they agree with the simulation; the score is
        # blinded by default.
        data = run["data"]
        assert 300 < data["num_events"] < 1000
        assert data["blind_above"] == 0.5
        assert data["copies"] == {"data": 0, "simulation": 0}
        p_values = [agreement["p_value"] for agreement in data["chi_square"].values()]
        assert min(p_values) > 1e-4
