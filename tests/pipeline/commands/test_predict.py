"""`predict`, in this process."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from delphes_files import write_delphes
from night_files import FIRST, NAMES, Night, events
from rich.console import Console
from stages_here import without_spark

from pipeline.commands.predict import predict
from pipeline.config import load_config
from pipeline.run_folder import RunFolder


@pytest.mark.slow
def test_events_of_the_training_were_not_known_where_the_samples_state_the_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_spark(monkeypatch, tmp_path)
    night = Night(tmp_path)
    for name, first in FIRST.items():
        write_delphes(night.data / f"{name}_0.root", events(first), tree="Events")
    samples = [
        {"name": name, "label": label, "files": [f"{night.data}/{name}_*.root"], "tree": "Events"}
        for label, name in enumerate(NAMES)
    ]
    training = {"workers": 1, "epochs": 1, "batch_size": 16}
    night.run("ingest", "features", "train", samples=samples, train=training, model={"names": ["hlf"]})
    said = StringIO()
    folder = RunFolder(load_config(str(tmp_path / "config.yaml")), Console(file=said, width=1000))
    model = night.version("train").folder / "hlf"
    predict(folder, [str(night.data / "qcd_0.root")], tmp_path / "out", model=str(model), parquet=True)
    assert "was trained on" in said.getvalue()
