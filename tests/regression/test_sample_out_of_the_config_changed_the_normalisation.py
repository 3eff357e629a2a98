"""Without the cross-section of a sample that had left the config, all slices of its class counted by their events."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import SAMPLES, small_config
from stages_here import run_here, without_spark

from pipeline.errors import MissingInputError


def sample(name: str, label: int, kind: str, number: int = 0) -> dict[str, object]:
    files = [str(SAMPLES / f"{kind}_13TeV_PU20_{number}.root")]
    return {"name": name, "label": label, "files": files, "cross_section_pb": 10.0**number}


@pytest.mark.slow
@pytest.mark.parametrize("name", [None, "high"], ids=["gone", "renamed"])
def test_sample_out_of_the_config_changed_the_normalisation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    without_spark(monkeypatch, tmp_path)
    others = [sample("low", 0, "qcd"), sample("ttbar", 1, "ttbar"), sample("wjets", 2, "wjets")]
    run_here(small_config(tmp_path, tmp_path, samples=[*others, sample("hard", 0, "qcd", 1)]), "ingest")
    now = small_config(tmp_path, tmp_path, samples=[*others, *([sample(name, 0, "qcd", 1)] if name else [])])
    with pytest.raises(
        MissingInputError, match=r"sample 'hard' .* no such sample now\. Run `python -m pipeline ingest`"
    ):
        run_here(now, "features")
