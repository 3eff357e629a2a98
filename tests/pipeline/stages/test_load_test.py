"""Stages refuse a load-test sample, unless they are asked to take it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from candidate_events import drawn_events
from delphes_files import write_delphes
from rich.console import Console

from ingestion.settings import SampleSettings
from pipeline.config import Config
from pipeline.configuration.shell_sections import SparkSettings
from pipeline.errors import LoadTestError
from pipeline.machine.spark_session import SparkProvider
from pipeline.runs.store import Version
from pipeline.stages.base import Context, Stage, StageInputs
from pipeline.stages.evaluate import Evaluate
from pipeline.stages.train import Train


def config_of(folder: Path, **changes: Any) -> Config:
    """Two classes of a made file each."""
    samples = []
    for label, name in enumerate(("qcd", "ttbar")):
        path = write_delphes(folder / f"{name}.root", drawn_events(4, seed=label))
        samples.append(SampleSettings(name=name, label=label, files=[str(path)]))
    return Config(run_dir=folder / "run", classes=["QCD", "ttbar"], samples=samples, **changes)


def context_of(folder: Path, *, load_test: bool, allowed: bool) -> Context:
    """A context whose features are, or are not, of a load-test sample; there are no files behind it."""
    version = Version("0001-abcdef01", folder, {"counters": {"load_test": load_test}})
    return Context(
        config=config_of(folder, allow_load_test=allowed),
        upstream={"features": version, "train": version},
        current=None,
        missing=frozenset(),
        taken_over_parts=frozenset(),
        found=StageInputs({}),
        out_dir=folder,
        data_dir=folder,
        spark=SparkProvider(SparkSettings()),
        console=Console(quiet=True),
    )


@pytest.mark.parametrize(("load_test", "allowed"), [(True, False), (False, False), (False, True), (True, True)])
@pytest.mark.parametrize("stage", [Train(), Evaluate()], ids=lambda stage: stage.name)
def test_stages_refuse_copies_unless_they_are_asked_for(
    tmp_path: Path, stage: Stage, load_test: bool, allowed: bool
) -> None:
    # If it takes them, it gets as far as looking for the dataset, which is not there.
    words = "allow_load_test: true" if load_test and not allowed else str(tmp_path)
    with pytest.raises(Exception, match=words) as caught:
        stage.run(context_of(tmp_path, load_test=load_test, allowed=allowed))
    assert isinstance(caught.value, LoadTestError) is (load_test and not allowed)
