"""Scores that cannot be written."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ingestion.settings import IngestSettings
from pipeline.commands.predict import _score_file
from pipeline.scoring import EventClassifier


@pytest.fixture
def small_files() -> Iterator[None]:
    """A limit of the sizes of files, as `ulimit -f` sets it."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


class Scorer:
    classes = ("QCD", "ttbar")
    columns = EventClassifier.columns

    def entries(self, *_: Any) -> Iterator[tuple[Any, Any]]:
        numbers = np.random.default_rng(1).random((5000, 2)).astype("f4")
        raw = SimpleNamespace(entries=np.arange(5000), pass_through={}, num_events=5000)
        yield raw, SimpleNamespace(flag=np.zeros(5000, "i1"), probability=numbers, counts={})


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("suffix", ["root", "parquet"])
def test_a_file_of_scores_that_is_too_large_is_named(tmp_path: Path, suffix: str) -> None:
    info = SimpleNamespace(path="a.root", entries=5000)
    path = tmp_path / f"a.scores.{suffix}"
    result: Any = _score_file(Scorer(), IngestSettings(), {}, info, path, on_events=lambda _: None)
    name, error = result
    assert name == path.name
    assert isinstance(error, OSError)
    assert "File too large" in str(error)
