"""Events that are only predicted get the features that the normal job gives them, in the order of the input."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_events import Row, events_table, lepton, made_event, track
from spark_in_process import Here

from features import spark_job
from features.kernel_pass import EventsFile
from features.kernels import build_features
from features.normalisation import GeneratedSample
from features.schema import SPLITS, features_schema
from features.settings import FeatureSettings
from features.spark_job import Unsplit, make_features, make_unsplit
from ingestion.files import expand, inventory
from ingestion.settings import IngestSettings, SampleSettings
from ingestion.spark_job import ingest
from pipeline.machine.spark_session import SparkProvider

pytestmark = pytest.mark.spark

CLASSES = ["QCD", "ttbar", "W+jets"]
SETTINGS = FeatureSettings(feed_workers=2)
SAMPLES = {name: GeneratedSample(label, None, 1, 1.0) for label, name in enumerate(("qcd", "ttbar", "wjets", "made"))}


class Made:
    """Unsplit features in a folder of its own."""

    def __init__(self, provider: SparkProvider, parts: Sequence[EventsFile], folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        done = provider.context().accumulator(0)
        self.result: Unsplit = make_unsplit(
            provider.context(), parts, SAMPLES, SETTINGS, CLASSES, folder, done=done, num_tasks=provider.num_tasks
        )
        self.num_done: int = done.value

    def keys(self) -> list[tuple[str, int]]:
        """The events in the order of the result."""
        return [key for file in self.result.files for key in keys_of(pq.read_table(file))]


def keys_of(table: pa.Table) -> list[tuple[str, int]]:
    return list(zip(table["file_uuid"].to_pylist(), table["entry"].to_pylist(), strict=True))


def by_event(files: Sequence[Path]) -> dict[tuple[str, int], dict[str, Any]]:
    """All columns of all events."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for file in files:
        table = pq.read_table(file)
        for key, columns in zip(keys_of(table), table.to_pylist(), strict=True):
            assert key not in found
            found[key] = columns
    return found


@pytest.fixture(scope="module")
def parts(
    provider: SparkProvider,
    bundled_samples: list[SampleSettings],
    tmp_path_factory: pytest.TempPathFactory,
) -> list[EventsFile]:
    folder = tmp_path_factory.mktemp("events")
    chosen = IngestSettings(entries_per_task=15)
    spark = provider.context()
    infos = inventory(expand(bundled_samples), chosen).infos
    done = spark.accumulator(0)
    found = ingest(spark, infos, bundled_samples, chosen, folder, done=done, num_tasks=provider.num_tasks)
    return [
        EventsFile(part.name, part.sample, part.digest, str(folder / part.name)) for part in found.parts if part.name
    ]


@pytest.fixture(scope="module")
def made(provider: SparkProvider, parts: list[EventsFile], tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(provider, parts, tmp_path_factory.mktemp("unsplit") / "made")


def test_every_event_has_what_the_normal_job_gives_it(
    provider: SparkProvider, parts: list[EventsFile], made: Made, tmp_path: Path
) -> None:
    spark = provider.context()
    done = spark.accumulator(0)
    normal = make_features(
        spark, parts, SAMPLES, SETTINGS, CLASSES, tmp_path, kernels=tmp_path, done=done, num_tasks=provider.num_tasks
    ).dataset  # fmt: skip
    expected = by_event([file for split in SPLITS for file in normal.files(split)])
    assert len(expected) == 665
    assert by_event(made.result.files) == expected
    assert made.num_done == done.value


def test_the_order_is_that_of_the_input(parts: list[EventsFile], made: Made) -> None:
    assert len(parts) > 6
    expected = []
    for part in parts:
        table = pq.read_table(part.path)
        expected += keys_of(table.select(["file_uuid", "entry"]).take(build_features(table, SETTINGS).selected))
    assert made.keys() == expected


def test_files_are_those_of_a_test_split_and_nothing_else_is_left(made: Made) -> None:
    left = {path.relative_to(made.folder) for path in made.folder.rglob("*") if path.is_file()}
    assert left == {file.relative_to(made.folder) for file in made.result.files}
    assert [path.name for path in made.folder.iterdir()] == ["test"]
    schema = pq.read_schema(made.result.files[0])
    assert schema.equals(features_schema())
    assert json.loads(schema.metadata[b"classes"]) == CLASSES
    assert json.loads(schema.metadata[b"columns"])["particle_vertex_z"]["unit"] == "mm"


def test_parts_longer_than_a_file_keep_their_order(
    provider: SparkProvider, parts: list[EventsFile], made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_job, "_UNMIXED_ROWS", 7)
    folder = tmp_path / "small"
    folder.mkdir()
    here: Any = Here()
    found = make_unsplit(
        here, parts, SAMPLES, SETTINGS, CLASSES, folder, done=here.accumulator(0), num_tasks=lambda work: work
    )  # fmt: skip
    assert len(found.files) > 95
    assert [key for file in found.files for key in keys_of(pq.read_table(file))] == made.keys()


GOOD = made_event(electrons=[lepton(40.0, 0, 0)])
NOT_ISOLATED = made_event(electrons=[lepton(40.0, 0, 0)], tracks=[track(40.0, 0.1, 0)])


def write_part(folder: Path, name: str, rows: list[Row]) -> EventsFile:
    numbered = [{**row, "file_uuid": name, "entry": entry} for entry, row in enumerate(rows)]
    path = folder / f"{name}.parquet"
    pq.write_table(events_table(numbered), path)
    return EventsFile(path.name, "made", "", str(path))


def test_parts_without_selected_events_are_fine(provider: SparkProvider, tmp_path: Path) -> None:
    rows = {"none": [NOT_ISOLATED] * 3, "some": [GOOD, NOT_ISOLATED, GOOD], "empty": []}
    parts = [write_part(tmp_path, name, each) for name, each in rows.items()]
    made = Made(provider, parts, tmp_path / "made")
    assert made.keys() == [("some", 0), ("some", 2)]
    assert [each.counts["selected"] for each in made.result.outputs] == [0, 2, 0]


def test_no_selected_event_at_all_gives_no_files(provider: SparkProvider, tmp_path: Path) -> None:
    made = Made(provider, [write_part(tmp_path, "none", [NOT_ISOLATED] * 3)], tmp_path / "made")
    assert made.result.files == []
    assert [path.name for path in made.folder.rglob("*")] == ["test"]
