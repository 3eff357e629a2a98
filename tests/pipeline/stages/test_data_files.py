"""Files of `evaluate.data`: which of their events are there already, and what is said of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from delphes_files import write_delphes
from night_files import FIRST, Night, events
from stages_here import run_here, without_spark

from pipeline.errors import MissingInputError


@pytest.mark.slow
def test_copies_in_the_data_were_not_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_spark(monkeypatch, tmp_path)
    night = Night(tmp_path)
    # Of 40 events 30 are selected; 6 of these are simulated, and 3 are there twice.
    data = [*events(500), *events(FIRST["ttbar"], 8), *events(500, 4)]
    write_delphes(tmp_path / "data.root", data)
    tail = {"train": {"workers": 1, "epochs": 1, "batch_size": 16}, "model": {"names": ["hlf"]}}
    night.run("ingest", "features", "train", evaluate={"data": [str(tmp_path / "data.root")]}, **tail)
    said = run_here(tmp_path / "config.yaml", "evaluate", "report")
    assert "data: 1 files, 52 entries" in said
    assert "note: 6 events of evaluate.data are copies of others in the simulation" in said
    assert "note: 3 events of evaluate.data are copies of others in the data" in said
    found = night.version("evaluate").manifest["counters"]["runs"]["hlf"]["data"]
    assert found["copies"] == {"data": 3, "simulation": 6}
    page = (night.version("report").folder / "report.html").read_text()
    assert "6 events of the data are copies of others in the simulation." in page

    write_delphes(tmp_path / "data.root", [each for each in data if not each["electrons"]])
    with pytest.raises(MissingInputError, match=r"evaluate\.data: no event of these files passes"):
        run_here(tmp_path / "config.yaml", "evaluate")
