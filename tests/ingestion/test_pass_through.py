"""Columns that the user carries along: from the ROOT file through events and features to the
predictions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import uproot
from delphes_files import (
    PARTICLE_BRANCHES,
    checked_files,
    jagged,
    read_raw_events,
    source_of,
    write_delphes,
)
from event_rows import distinct, event_row, lepton
from networks import small_network
from prediction_trees import read_root
from pydantic import ValidationError
from spark_in_process import InProcessSpark

from features.kernel_pass import EventsFile
from features.normalisation import GeneratedSample
from features.settings import FeatureSettings
from features.unsplit_job import make_unsplit
from ingestion.errors import MissingBranchError, WrongBranchTypeError
from ingestion.files import inventory
from ingestion.reader import read_events
from ingestion.selection import select_events
from ingestion.settings import IngestSettings, SampleSettings
from ingestion.spark_job import ingest
from models.prediction import predict
from models.prediction_files import write_root

CLASSES = ["QCD", "ttbar", "W+jets"]
NUMBER = 2**60 + 1
PASS_THROUGH = IngestSettings(pass_through=["Event.Number", "ScalarHT.HT"])


def written(
    path: Path,
    *,
    numbers: type = np.int64,
    further: Mapping[str, Any] | None = None,
    is_empty: bool = False,
) -> Path:
    """A Delphes file with two more branches: lists with one number, and plain numbers."""
    rows = distinct(
        [event_row(electrons=[lepton(40.0 + n, 0, 0)] if n % 2 else []) for n in range(6)]
    )
    more = {"Event.Number": jagged(np.arange(7), (NUMBER + np.arange(6)).astype(numbers))}
    more |= {"ScalarHT.HT": np.arange(6) / 4}
    more |= {name: ak.Array(values) for name, values in (further or {}).items()}
    return write_delphes(path, [] if is_empty else rows, more=more)


def predicted(folder: Path, settings: IngestSettings, sample: GeneratedSample) -> pa.Table:
    """Predictions of the events of `written`, which went through ingest and features."""
    (info,) = inventory([source_of("a", 1, str(written(folder / "a.root")))], settings).infos
    in_process_spark: Any = InProcessSpark()
    for name in ("events", "features"):
        (folder / name).mkdir()
    samples = [SampleSettings(name="a", label=1, files=["-"])]
    created = ingest(
        in_process_spark,
        [info],
        samples,
        settings,
        folder / "events",
        done=in_process_spark,
        num_tasks=int,
    )
    chunks = [
        EventsFile(chunk.name, "a", "", str(folder / "events" / chunk.name))
        for chunk in created.parts
    ]
    features = make_unsplit(
        in_process_spark,
        chunks,
        {"a": sample},
        FeatureSettings(),
        CLASSES,
        folder / "features",
        event_counter=in_process_spark,
        num_tasks=int,
    )
    assert pq.read_schema(features.files[0]).names[-len(info.pass_through) :] == list(
        info.pass_through
    )
    return predict(small_network("hlf"), features.files)


def test_pass_through_columns_arrive_in_the_predictions_with_every_bit(tmp_path: Path) -> None:
    actual = predicted(tmp_path, PASS_THROUGH, GeneratedSample(1, None, 1, 1.0))
    assert actual["Event.Number"].to_pylist() == [NUMBER + 1, NUMBER + 3, NUMBER + 5]
    assert actual["ScalarHT.HT"].to_pylist() == [0.25, 0.75, 1.25]
    write_root(actual, CLASSES, tmp_path / "p.root")
    assert (
        read_root(tmp_path / "p.root")["Event.Number"].to_pylist()
        == actual["Event.Number"].to_pylist()
    )


def test_other_weights_arrive_as_physics_weights_and_have_their_own_names(tmp_path: Path) -> None:
    actual = predicted(
        tmp_path,
        IngestSettings(weights={"scale_up": "ScalarHT.HT"}),
        GeneratedSample(1, None, 6, 3.0),
    )
    assert actual["weight"].to_pylist() == [2.0] * 3
    assert actual["weight_scale_up"].to_pylist() == [0.5, 1.5, 2.5]


def listed(path: Path, *, short: int | None = None, is_empty: bool = False) -> Path:
    """A file with nine weights per event of the generator; the event `short` has only seven."""
    rows = [[10.0 * entry + n for n in range(7 if entry == short else 9)] for entry in range(6)]
    further = {"WeightLHEF.Weight": rows, "Fixed": np.arange(12.0).reshape(6, 2)}
    return written(path, further=further, is_empty=is_empty)


def test_weights_are_read_from_lists(tmp_path: Path) -> None:
    path = listed(tmp_path / "a.root")
    weights = {
        "up": "WeightLHEF.Weight[7]",
        "factor": "weight * WeightLHEF.Weight[0]",
        "fixed": "Fixed[1]",
    }
    settings = IngestSettings(weights=weights)
    actual = read_raw_events(path, settings, weight="ScalarHT.HT").pass_through
    assert actual["weight_up"].tolist() == [10.0 * entry + 7 for entry in range(6)]
    assert actual["weight_factor"].tolist() == [entry / 4 * 10.0 * entry for entry in range(6)]
    assert actual["weight_fixed"].tolist() == [1.0, 3.0, 5.0, 7.0, 9.0, 11.0]
    empty = listed(tmp_path / "empty.root", is_empty=True)
    assert inventory([source_of("a", 0, str(empty))], settings).infos[0].entries == 0


def test_a_number_that_is_not_in_the_list_is_refused_with_file_and_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingestion.reader.piece_edges", lambda *_: [0, 3, 6])
    settings = IngestSettings(weights={"up": "WeightLHEF.Weight[7]"})
    (info,) = checked_files(listed(tmp_path / "a.root", short=4), settings=settings)
    with pytest.raises(
        WrongBranchTypeError,
        match=r"a\.root: branch 'WeightLHEF.Weight' holds 7 numbers in entry 4, but 9 in others: \[7\] would",
    ):
        list(read_events(info, settings, start=0, stop=6))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"weights": {"up": "WeightLHEF.Weight"}},
            r"9 numbers in entry 0; .* ingest.weights, from 0: '\S+Weight\[0\]'",
        ),
        (
            {"weights": {"up": "WeightLHEF.Weight[9]"}},
            r"9 numbers in entry 0; \[9\] \(from 0\) is not there",
        ),
        (
            {"weights": {"up": "ScalarHT.HT[0]"}},
            r"no list of numbers per event\. Leave \[0\] out under ingest\.weights",
        ),
        (
            {"pass_through": ["WeightLHEF.Weight"]},
            r"9 numbers in entry 0; exactly one is needed\. Take it out of ingest\.pass_through",
        ),
    ],
)
def test_lists_are_seen_when_files_are_checked(
    tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    """The entry counts from the begin of the file, whatever range a Spark task reads."""
    with pytest.raises(WrongBranchTypeError, match=message):
        inventory([source_of("a", 0, str(listed(tmp_path / "a.root")))], IngestSettings(**settings))


def test_a_column_of_the_user_is_no_weight_by_its_name() -> None:
    with pytest.raises(
        ValidationError, match="'weight_up': columns that begin with 'weight_' are those of"
    ):
        IngestSettings(pass_through=["weight_up"])


def test_a_branch_that_is_not_there_and_files_of_different_types_are_named(tmp_path: Path) -> None:
    first = written(tmp_path / "a.root")
    with pytest.raises(
        MissingBranchError,
        match=r"'Event\.Numbr' \(for ingest\.pass_through: .*Nearest: Event\.Number",
    ):
        inventory([source_of("a", 0, str(first))], IngestSettings(pass_through=["Event.Numbr"]))
    sources = [
        source_of("a", 0, str(path))
        for path in (first, written(tmp_path / "b.root", numbers=np.float64))
    ]
    with pytest.raises(
        WrongBranchTypeError, match=r"b\.root has .*'float64'.*a\.root has .*'int64'"
    ):
        inventory(sources, PASS_THROUGH)


def test_several_numbers_of_one_list_read_their_branch_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of a hundred weights of a generator decompressed all of them."""
    lists = {"WeightLHEF.Weight": [[1.0, 2.0, 3.0]] * 6}
    path = written(tmp_path / "a.root", further=lists)
    settings = IngestSettings(
        weights={f"w{index}": f"WeightLHEF.Weight[{index}]" for index in range(3)}
    )
    (info,) = inventory([source_of("a", 1, str(path))], settings).infos
    read_raw_events: list[str] = []
    array = uproot.TBranch.array

    def noted(branch: Any, **options: Any) -> Any:
        read_raw_events.append(branch.name)
        return array(branch, **options)

    monkeypatch.setattr(uproot.TBranch, "array", noted)
    (raw,) = read_events(info, settings, start=0, stop=6)
    assert [raw.pass_through[f"weight_w{index}"][0] for index in range(3)] == [1.0, 2.0, 3.0]
    assert read_raw_events.count("WeightLHEF.Weight") == 1


@pytest.mark.parametrize("name", ["met", "met_phi", "weight", "label", "jets"])
def test_a_branch_with_the_name_of_a_field_is_beside_the_field(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / "a.root", further={name: np.full(6, np.pi)})
    settings = IngestSettings(pass_through=[name], branch_map={"met": "MissingET.MET"})
    (info,) = checked_files(path, settings=settings, weight="none")
    raw = read_raw_events(info, settings)
    alone = read_raw_events(path, weight="none")

    assert raw.pass_through[name].tolist() == [np.pi] * 6
    for field, numbers in alone.scalars.items():
        assert raw.scalars[field].tolist() == numbers.tolist()
    table = select_events(raw, info, settings).table
    expected = select_events(alone, info._replace(pass_through={}), IngestSettings()).table
    assert table.select(expected.column_names) == expected


def test_a_branch_that_begins_like_particles_is_none(tmp_path: Path) -> None:
    rows = [event_row(electrons=[lepton(40.0, 0, 0)])]
    more = {"tracks_n": np.array([7])}
    path = write_delphes(tmp_path / "a.root", rows, without=PARTICLE_BRANCHES, more=more)

    settings = IngestSettings(pass_through=["tracks_n"])
    (info,) = checked_files(path, settings=settings, needs_particles=False)
    assert read_raw_events(info, settings).pass_through["tracks_n"].tolist() == [7]
    mistyped = IngestSettings(pass_through=["tracks_num"])
    with pytest.raises(MissingBranchError, match=r"tracks_num.*Nearest: tracks_n"):
        checked_files(path, settings=mistyped, needs_particles=False)
