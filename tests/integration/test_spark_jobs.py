"""The Spark jobs of ingest, features and predictions on the bundled sample and on made files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from delphes_files import write_delphes
from event_rows import distinct, event_row, events_table, lepton, track
from prediction_trees import keys_of
from pyspark import SparkContext
from pyspark.sql import SparkSession

from features.columns import INPUT_COLUMNS
from features.distributions import EVENTS_FOR_PARTICLES
from features.errors import FeatureError
from features.kernel_pass import EventsFile
from features.kernels import build_features
from features.matrices import hlf_array, model_inputs
from features.normalisation import GeneratedSample
from features.schema import SPLITS, features_schema
from features.settings import FeatureSettings
from features.spark_job import FeaturesResult, make_features
from features.unsplit_job import Unsplit, make_unsplit
from hep_core.input_errors import DamagedFileError
from ingestion.file_info import FileInfo
from ingestion.files import expand, inventory
from ingestion.settings import IngestSettings, SampleSettings
from ingestion.spark_job import IngestResult, ingest
from ingestion.tally import sums_by_sample
from pipeline.machine.spark_session import SparkProvider

pytestmark = pytest.mark.spark

CLASSES = ["QCD", "ttbar", "W+jets"]
#: Events and selected events of the bundled files, by an independent count when they were made.
BUNDLED = {"qcd": (300, 137), "ttbar": (300, 269), "wjets": (300, 259)}
GENERATED = {name: GeneratedSample(label, None, 1, 1.0) for label, name in enumerate(BUNDLED)}
SETTINGS = FeatureSettings(feed_workers=4)


def run_ingest(
    provider: SparkProvider,
    samples: Sequence[SampleSettings],
    out: Path,
    *,
    files: Sequence[FileInfo] | None = None,
    **settings: Any,
) -> IngestResult:
    out.mkdir()
    ingest_settings = IngestSettings(**settings)
    infos = inventory(expand(samples), ingest_settings).infos if files is None else files
    spark = provider.context()
    completed = spark.accumulator(0)
    result = ingest(
        spark, infos, samples, ingest_settings, out, done=completed, num_tasks=provider.num_tasks
    )
    assert completed.value == sum(info.entries for info in infos)
    return result


def parts_of(events: Path, result: IngestResult) -> list[EventsFile]:
    return [
        EventsFile(chunk.name, chunk.sample, chunk.digest, str(events / chunk.name))
        for chunk in result.parts
        if chunk.name
    ]


def run_features(
    provider: SparkProvider, events: Path, result: IngestResult, out: Path, **settings: Any
) -> FeaturesResult:
    (out / "kernels").mkdir(parents=True)
    spark = provider.context()
    return make_features(
        spark,
        parts_of(events, result),
        GENERATED,
        FeatureSettings(**settings),
        CLASSES,
        out,
        kernels=out / "kernels",
        event_counter=spark.accumulator(0),
        num_tasks=provider.num_tasks,
    )


class Made:
    """The bundled sample ingested and made into features."""

    def __init__(self, folder: Path, ingested: IngestResult, features: FeaturesResult) -> None:
        self.folder = folder
        self.ingested = ingested
        self.features = features


@pytest.fixture(scope="module")
def made(
    provider: SparkProvider,
    bundled_samples: list[SampleSettings],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Made]:
    folder = tmp_path_factory.mktemp("bundled")
    ingested = run_ingest(provider, bundled_samples, folder / "events", entries_per_task=15)
    features = run_features(
        provider, folder / "events", ingested, folder / "features", feed_workers=4
    )
    return Made(folder, ingested, features)


def test_counters_of_the_bundled_sample_add_up_to_the_known_numbers(
    made: Made, bundled_samples: list[SampleSettings]
) -> None:
    all_ingested, all_chosen = (
        sums_by_sample(parts)["samples"] for parts in (made.ingested.parts, made.features.outputs)
    )
    for sample, (entries, selected) in BUNDLED.items():
        ingested, choice = all_ingested[sample], all_chosen[sample]
        assert ingested["entries"] == entries
        assert (
            ingested["rejected_nonfinite"] + ingested["rejected_no_lepton"] + ingested["events"]
            == entries
        )
        assert choice["events"] == ingested["events"]
        assert choice["selected"] == selected


def test_events_are_readable_by_spark_pandas_and_awkward(made: Made, spark: SparkContext) -> None:
    events = SparkSession(spark).read.parquet(str(made.folder / "events"))
    frame = pd.read_parquet(made.folder / "events")
    total = sum(chunk.counts["events"] for chunk in made.ingested.parts)
    assert events.count() == len(frame) == total
    assert events.select("tracks.pt").first() is not None
    jagged = ak.from_parquet(made.folder / "events")
    in_pandas = [sum(jet["pt"] for jet in jets) for jets in frame["jets"]]
    np.testing.assert_allclose(ak.sum(jagged.jets.pt, axis=1), in_pandas, rtol=1e-6)
    assert frame["tracks"].iloc[0][0]["pt"] > 0.5


def test_features_are_readable_by_spark_and_small(made: Made, spark: SparkContext) -> None:
    dataset = made.features.dataset
    events = SparkSession(spark).read.parquet(*(str(dataset.folder / split) for split in SPLITS))
    particles = events.selectExpr("label", "explode(particle_pt) as pt")
    assert particles.count() == events.agg({"num_particles": "sum"}).first()[0]
    files = [path for split in SPLITS for path in dataset.files(split)]
    assert sum(path.stat().st_size for path in files) < 16_000 * events.count()


def as_networks_see(rows: np.ndarray, column: str) -> np.ndarray:
    """Features with heavy tails as asinh(x / log_above)."""
    units = np.array(INPUT_COLUMNS[column].log_above)
    return np.where(units > 0, np.arcsinh(rows / np.where(units > 0, units, 1)), rows)


def test_scalers_are_those_of_the_training_rows_and_of_a_sample_of_their_particles_without_padding(
    made: Made,
) -> None:
    dataset = made.features.dataset
    hlf, particles = [], []
    assert any(group.rows > EVENTS_FOR_PARTICLES for group in dataset.splits["train"])
    for path in dataset.files("train"):
        table = pq.read_table(path)
        hlf.append(hlf_array(table))
        sample = table.slice(0, EVENTS_FOR_PARTICLES)
        padded = model_inputs(sample, ["particles"])["particles"]
        particles += [
            event[:count]
            for event, count in zip(padded, sample["num_particles"].to_pylist(), strict=True)
        ]
    for name, rows in {"hlf": hlf, "particles": particles}.items():
        flat, scaler = np.concatenate(rows).astype(float), dataset.scaler()[name]
        assert scaler["rows"] == len(flat)
        seen = as_networks_see(flat, name)
        np.testing.assert_allclose(scaler["mean"], seen.mean(axis=0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(scaler["std"], seen.std(axis=0), rtol=1e-5)


class Unmixed:
    """Events that are only predicted: features in the order of the input, in a folder of its own."""

    def __init__(self, provider: SparkProvider, parts: Sequence[EventsFile], folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        done = provider.context().accumulator(0)
        self.result: Unsplit = make_unsplit(
            provider.context(),
            parts,
            GENERATED,
            SETTINGS,
            CLASSES,
            folder,
            event_counter=done,
            num_tasks=provider.num_tasks,
        )
        self.num_done: int = done.value

    def keys(self) -> list[tuple[str, int]]:
        return [key for file in self.result.files for key in keys_of(pq.read_table(file))]


def by_event(files: Sequence[Path]) -> dict[tuple[str, int], dict[str, Any]]:
    """All columns of all events."""
    tables = [pq.read_table(file) for file in files]
    actual = {
        key: row
        for table in tables
        for key, row in zip(keys_of(table), table.to_pylist(), strict=True)
    }
    assert len(actual) == sum(table.num_rows for table in tables)
    return actual


@pytest.fixture(scope="module")
def parts(made: Made) -> list[EventsFile]:
    return parts_of(made.folder / "events", made.ingested)


@pytest.fixture(scope="module")
def unmixed(
    provider: SparkProvider, parts: list[EventsFile], tmp_path_factory: pytest.TempPathFactory
) -> Unmixed:
    return Unmixed(provider, parts, tmp_path_factory.mktemp("unsplit") / "made")


def test_every_event_has_unsplit_what_the_normal_job_gives_it(made: Made, unmixed: Unmixed) -> None:
    dataset = made.features.dataset
    expected = by_event([file for split in SPLITS for file in dataset.files(split)])
    assert len(expected) == 665
    assert by_event(unmixed.result.files) == expected
    assert unmixed.num_done == sum(output.counts["events"] for output in unmixed.result.outputs)


def test_the_order_of_unsplit_events_is_that_of_the_input(
    parts: list[EventsFile], unmixed: Unmixed
) -> None:
    assert len(parts) > 6
    expected = []
    for chunk in parts:
        table = pq.read_table(chunk.path)
        expected += keys_of(
            table.select(["file_uuid", "entry"]).take(build_features(table, SETTINGS).selected)
        )
    assert unmixed.keys() == expected


def test_unsplit_files_are_those_of_a_test_split_and_nothing_else_is_left(unmixed: Unmixed) -> None:
    leftovers = {
        path.relative_to(unmixed.folder) for path in unmixed.folder.rglob("*") if path.is_file()
    }
    assert leftovers == {file.relative_to(unmixed.folder) for file in unmixed.result.files}
    assert [path.name for path in unmixed.folder.iterdir()] == ["test"]
    schema = pq.read_schema(unmixed.result.files[0])
    assert schema.equals(features_schema())
    assert json.loads(schema.metadata[b"classes"]) == CLASSES
    assert json.loads(schema.metadata[b"columns"])["particle_vertex_z"]["unit"] == "mm"


@pytest.mark.parametrize(
    ("rows", "selected"),
    [
        ({"none": "--", "some": "+-+", "empty": ""}, [("some", 0), ("some", 2)]),
        ({"none": "--"}, []),
    ],
)
def test_unsplit_parts_without_selected_events_are_fine(
    provider: SparkProvider, tmp_path: Path, rows: dict[str, str], selected: list[tuple[str, int]]
) -> None:
    parts = []
    for name, kinds in rows.items():
        made = [
            (GOOD if kind_name == "+" else NOT_ISOLATED) | {"file_uuid": name, "entry": n}
            for n, kind_name in enumerate(kinds)
        ]
        pq.write_table(events_table(made), tmp_path / f"{name}.parquet")
        parts.append(EventsFile(f"{name}.parquet", "qcd", "", str(tmp_path / f"{name}.parquet")))
    unmixed = Unmixed(provider, parts, tmp_path / "made")
    assert unmixed.keys() == selected
    assert len(unmixed.result.files) == (1 if selected else 0)
    assert sum(output.counts["selected"] for output in unmixed.result.outputs) == len(selected)


def make_samples(folder: Path, **events: list[Any]) -> list[SampleSettings]:
    for name, rows in events.items():
        write_delphes(folder / f"{name}.root", distinct(rows))
    return [
        SampleSettings(name=name, label=label, files=[str(folder / f"{name}.root")])
        for label, name in enumerate(events)
    ]


GOOD = event_row(electrons=[lepton(40.0, 0, 0)])
SOFT = event_row(electrons=[lepton(10.0, 0, 0)])
NOT_ISOLATED = event_row(electrons=[lepton(40.0, 0, 0)], tracks=[track(40.0, 0.1, 0)])


def test_a_sample_of_which_no_event_is_selected_shows_its_cutflow(
    provider: SparkProvider, tmp_path: Path
) -> None:
    samples = make_samples(tmp_path, qcd=[GOOD], ttbar=[NOT_ISOLATED] * 3)
    ingested = run_ingest(provider, samples, tmp_path / "events")
    with pytest.raises(
        FeatureError, match=r"(?s)'ttbar': no event is left.*no_isolated_lepton\s+3"
    ):
        run_features(provider, tmp_path / "events", ingested, tmp_path / "features")


def test_damage_found_while_reading_comes_back_from_the_task_as_one_clear_error(
    provider: SparkProvider, bundled_files: list[FileInfo], tmp_path: Path
) -> None:
    file_bytes = bytearray(Path(bundled_files[0].path).read_bytes())
    for position in np.random.default_rng(1).integers(10_000, len(file_bytes) - 200_000, 300):
        file_bytes[position] ^= 0xFF
    (tmp_path / "damaged.root").write_bytes(file_bytes)
    sample = SampleSettings(name="qcd", label=0, files=[str(tmp_path / "damaged.root")])
    with pytest.raises(DamagedFileError, match=r"damaged\.root is damaged: entries") as caught:
        run_ingest(provider, [sample], tmp_path / "out")
    assert "Py4J" not in str(caught.value)
