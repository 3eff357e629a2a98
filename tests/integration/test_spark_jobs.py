"""The Spark jobs of ingest, features and predictions on the bundled sample and on made files."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

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
FILE_UUIDS = [str(uuid.UUID(int=number)) for number in range(3)]
ISOLATED = event_row(electrons=[lepton(40.0, 0, 0)])
NOT_ISOLATED = event_row(electrons=[lepton(40.0, 0, 0)], tracks=[track(40.0, 0.1, 0)])


def run_ingest(
    provider: SparkProvider, samples: Sequence[SampleSettings], out: Path, **settings: Any
) -> IngestResult:
    """Ingest all files of the samples."""
    out.mkdir()
    ingest_settings = IngestSettings(**settings)
    infos = inventory(expand(samples), ingest_settings).infos
    spark = provider.context()
    entry_counter = spark.accumulator(0)
    result = ingest(
        spark,
        infos,
        samples,
        ingest_settings,
        out,
        done=entry_counter,
        num_tasks=provider.num_tasks,
    )
    assert entry_counter.value == sum(info.entries for info in infos)
    return result


def events_files(folder: Path, ingested: IngestResult) -> list[EventsFile]:
    """The files of ingested events."""
    return [
        EventsFile(file.name, file.sample, file.digest, str(folder / file.name))
        for file in ingested.parts
        if file.name
    ]


def run_features(provider: SparkProvider, files: Sequence[EventsFile], out: Path) -> FeaturesResult:
    (out / "kernels").mkdir(parents=True)
    spark = provider.context()
    return make_features(
        spark,
        files,
        GENERATED,
        SETTINGS,
        CLASSES,
        out,
        kernels=out / "kernels",
        event_counter=spark.accumulator(0),
        num_tasks=provider.num_tasks,
    )


class Bundled(NamedTuple):
    """The bundled sample, ingested and made into features."""

    events: Path
    ingested: IngestResult
    files: list[EventsFile]
    features: FeaturesResult

    def feature_files(self) -> list[Path]:
        """The files of all splits."""
        dataset = self.features.dataset
        return [path for split in SPLITS for path in dataset.files(split)]


@pytest.fixture(scope="module")
def bundled(
    provider: SparkProvider,
    bundled_samples: list[SampleSettings],
    tmp_path_factory: pytest.TempPathFactory,
) -> Bundled:
    folder = tmp_path_factory.mktemp("bundled")
    events = folder / "events"
    ingested = run_ingest(provider, bundled_samples, events, entries_per_task=15)
    files = events_files(events, ingested)
    return Bundled(events, ingested, files, run_features(provider, files, folder / "features"))


def test_counters_of_the_bundled_sample_add_up_to_the_known_numbers(bundled: Bundled) -> None:
    ingested = sums_by_sample(bundled.ingested.parts)["samples"]
    selected = sums_by_sample(bundled.features.outputs)["samples"]

    for sample, (num_entries, num_selected) in BUNDLED.items():
        counters = ingested[sample]
        rejected = counters["rejected_nonfinite"] + counters["rejected_no_lepton"]
        assert counters["entries"] == num_entries
        assert rejected + counters["events"] == num_entries
        assert selected[sample]["events"] == counters["events"]
        assert selected[sample]["selected"] == num_selected


def test_events_are_readable_by_spark_pandas_and_awkward(
    bundled: Bundled, spark: SparkContext
) -> None:
    in_spark = SparkSession(spark).read.parquet(str(bundled.events))
    in_pandas = pd.read_parquet(bundled.events)
    in_awkward = ak.from_parquet(bundled.events)

    num_events = sum(file.counts["events"] for file in bundled.ingested.parts)
    assert in_spark.count() == len(in_pandas) == num_events
    assert in_spark.select("tracks.pt").first() is not None
    assert in_pandas["tracks"].iloc[0][0]["pt"] > 0.5
    jet_pt_sums = [sum(jet["pt"] for jet in jets) for jets in in_pandas["jets"]]
    np.testing.assert_allclose(ak.sum(in_awkward.jets.pt, axis=1), jet_pt_sums, rtol=1e-6)


def test_features_are_readable_by_spark_and_small(bundled: Bundled, spark: SparkContext) -> None:
    files = bundled.feature_files()

    events = SparkSession(spark).read.parquet(*map(str, files))
    particles = events.selectExpr("label", "explode(particle_pt) as pt")

    assert particles.count() == events.agg({"num_particles": "sum"}).first()[0]
    assert sum(path.stat().st_size for path in files) < 16_000 * events.count()


def network_inputs(rows: np.ndarray, column: str) -> np.ndarray:
    """Features as networks get them before scaling: heavy tails as asinh(x / log_above)."""
    log_above = np.array(INPUT_COLUMNS[column].log_above)
    has_heavy_tail = log_above > 0
    scaled = rows / np.where(has_heavy_tail, log_above, 1)
    return np.where(has_heavy_tail, np.arcsinh(scaled), rows)


def test_scalers_are_fitted_to_training_rows_and_a_sample_of_their_particles_without_padding(
    bundled: Bundled,
) -> None:
    dataset = bundled.features.dataset
    assert max(group.rows for group in dataset.splits["train"]) > EVENTS_FOR_PARTICLES
    hlf_rows, particle_rows = [], []
    for path in dataset.files("train"):
        table = pq.read_table(path)
        hlf_rows.append(hlf_array(table))
        sample = table.slice(0, EVENTS_FOR_PARTICLES)
        padded = model_inputs(sample, ["particles"])["particles"]
        lengths = sample["num_particles"].to_pylist()
        for particles, num_particles in zip(padded, lengths, strict=True):
            particle_rows.append(particles[:num_particles])

    for column, rows in (("hlf", hlf_rows), ("particles", particle_rows)):
        inputs = network_inputs(np.concatenate(rows).astype(float), column)
        scaler = dataset.scaler()[column]
        assert scaler["rows"] == len(inputs)
        np.testing.assert_allclose(scaler["mean"], inputs.mean(axis=0), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(scaler["std"], inputs.std(axis=0), rtol=1e-5)


class UnsplitFeatures:
    """Features of events that are only predicted, in the order of the input."""

    def __init__(self, provider: SparkProvider, files: Sequence[EventsFile], folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        event_counter = provider.context().accumulator(0)
        self.result: Unsplit = make_unsplit(
            provider.context(),
            files,
            GENERATED,
            SETTINGS,
            CLASSES,
            folder,
            event_counter=event_counter,
            num_tasks=provider.num_tasks,
        )
        self.num_events: int = event_counter.value

    def keys(self) -> list[tuple[str, int]]:
        """The identities of the events, in their order."""
        return [key for path in self.result.files for key in keys_of(pq.read_table(path))]


def rows_by_key(files: Sequence[Path]) -> dict[tuple[str, int], dict[str, Any]]:
    """All columns of all events, by the identities of the events."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    num_rows = 0
    for path in files:
        table = pq.read_table(path)
        rows.update(zip(keys_of(table), table.to_pylist(), strict=True))
        num_rows += table.num_rows
    assert len(rows) == num_rows
    return rows


@pytest.fixture(scope="module")
def unsplit(
    provider: SparkProvider, bundled: Bundled, tmp_path_factory: pytest.TempPathFactory
) -> UnsplitFeatures:
    """The bundled events as if they were only predicted."""
    return UnsplitFeatures(provider, bundled.files, tmp_path_factory.mktemp("unsplit") / "made")


def test_events_have_the_same_features_unsplit_and_split(
    bundled: Bundled, unsplit: UnsplitFeatures
) -> None:
    expected = rows_by_key(bundled.feature_files())

    assert len(expected) == 665
    assert rows_by_key(unsplit.result.files) == expected
    assert unsplit.num_events == sum(output.counts["events"] for output in unsplit.result.outputs)


def test_unsplit_events_have_the_order_of_the_input(
    bundled: Bundled, unsplit: UnsplitFeatures
) -> None:
    assert len(bundled.files) > 6
    expected = []
    for file in bundled.files:
        events = pq.read_table(file.path)
        selected = build_features(events, SETTINGS).selected
        expected += keys_of(events.select(["file_uuid", "entry"]).take(selected))

    assert unsplit.keys() == expected


def test_unsplit_features_are_the_files_of_a_test_split_and_no_other_file(
    unsplit: UnsplitFeatures,
) -> None:
    files = {path for path in unsplit.folder.rglob("*") if path.is_file()}
    schema = pq.read_schema(unsplit.result.files[0])

    assert files == set(unsplit.result.files)
    assert [path.name for path in unsplit.folder.iterdir()] == ["test"]
    assert schema.equals(features_schema())
    assert json.loads(schema.metadata[b"classes"]) == CLASSES
    assert json.loads(schema.metadata[b"columns"])["particle_vertex_z"]["unit"] == "mm"


@pytest.mark.parametrize(
    ("events_of_file", "selected"),
    [
        (
            {
                FILE_UUIDS[0]: [NOT_ISOLATED, NOT_ISOLATED],
                FILE_UUIDS[1]: [ISOLATED, NOT_ISOLATED, ISOLATED],
                FILE_UUIDS[2]: [],
            },
            [(FILE_UUIDS[1], 0), (FILE_UUIDS[1], 2)],
        ),
        ({FILE_UUIDS[0]: [NOT_ISOLATED, NOT_ISOLATED]}, []),
    ],
    ids=["some selected", "none selected"],
)
def test_files_of_events_may_lack_selected_events(
    provider: SparkProvider,
    tmp_path: Path,
    events_of_file: dict[str, list[dict[str, Any]]],
    selected: list[tuple[str, int]],
) -> None:
    files = []
    for file_uuid, events in events_of_file.items():
        path = tmp_path / f"{file_uuid}.parquet"
        key = {"file_uuid": file_uuid}
        rows = [event | key | {"entry": entry} for entry, event in enumerate(events)]
        pq.write_table(events_table(rows), path)
        files.append(EventsFile(path.name, "qcd", "", str(path)))

    unsplit = UnsplitFeatures(provider, files, tmp_path / "made")

    assert unsplit.keys() == selected
    assert bool(unsplit.result.files) == bool(selected)
    num_selected = sum(output.counts["selected"] for output in unsplit.result.outputs)
    assert num_selected == len(selected)


def test_the_error_of_a_sample_without_selected_events_shows_its_cutflow(
    provider: SparkProvider, tmp_path: Path
) -> None:
    samples = []
    for label, (name, events) in enumerate(
        {"qcd": [ISOLATED], "ttbar": [NOT_ISOLATED] * 3}.items()
    ):
        path = write_delphes(tmp_path / f"{name}.root", distinct(events))
        samples.append(SampleSettings(name=name, label=label, files=[str(path)]))
    ingested = run_ingest(provider, samples, tmp_path / "events")
    files = events_files(tmp_path / "events", ingested)

    message = r"(?s)'ttbar': no event is left.*no_isolated_lepton\s+3"
    with pytest.raises(FeatureError, match=message):
        run_features(provider, files, tmp_path / "features")


def test_a_task_that_reads_damage_ends_with_an_error_of_ours(
    provider: SparkProvider, bundled_files: list[FileInfo], tmp_path: Path
) -> None:
    path = tmp_path / "damaged.root"
    file_bytes = bytearray(Path(bundled_files[0].path).read_bytes())
    for position in np.random.default_rng(1).integers(10_000, len(file_bytes) - 200_000, 300):
        file_bytes[position] ^= 0xFF
    path.write_bytes(file_bytes)
    sample = SampleSettings(name="qcd", label=0, files=[str(path)])

    with pytest.raises(DamagedFileError, match=r"damaged\.root is damaged: entries") as error:
        run_ingest(provider, [sample], tmp_path / "out")

    assert "Py4J" not in str(error.value)
