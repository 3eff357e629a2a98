"""Load-test samples: as many events as asked for, the physics of their parents, and never taken for real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from candidate_events import drawn_events
from delphes_files import write_delphes
from load_test import EVENTS_PER_FILE, TREE, branch_map, turned, write_load_test
from made_events import Row
from numpy.typing import NDArray

from features.columns import HLF_NAMES
from features.kernel_pass import EventsFile, keys_of, read_unmixed, run_kernels
from features.kernels import build_features
from features.schema import SPLITS
from features.settings import FeatureSettings
from features.splitting import split_index
from ingestion.copies import event_keys
from ingestion.files import FileInfo, SourceFile, inventory
from ingestion.reader import RawEvents, read_events, select_events
from ingestion.schema import COLLECTIONS
from ingestion.settings import IngestSettings

SETTINGS: Final = IngestSettings()
LOAD_TEST: Final = IngestSettings(tree=TREE, branch_map=branch_map())
ANGLES: Final = ("met_phi", "lepton_eta", "lepton_phi")
ISOLATIONS: Final = ("lepton_iso_charged", "lepton_iso_photon", "lepton_iso_neutral")
#: Not a multiple of the 150 events of the bundled file.
NUM_COPIES: Final = 310
SIGNED: Final = ("eta", "z")
UNTOUCHED: Final = ("pid", "charge", "pt", "et", "btag")


class Sample(NamedTuple):
    """Files with all of their entries as read, and with those that are selected."""

    infos: list[FileInfo]
    raws: list[RawEvents]
    table: pa.Table

    def entries(self) -> list[tuple[int, int]]:
        """Block and row of every entry, in order."""
        return [(block, row) for block, raw in enumerate(self.raws) for row in range(raw.num_events)]


def sample_of(infos: list[FileInfo], settings: IngestSettings) -> Sample:
    raws, tables = [], []
    for info in infos:
        for raw in read_events(info, settings, start=0, stop=info.entries):
            raws.append(raw)
            tables.append(select_events(raw, info, settings).table)
    return Sample(infos, raws, pa.concat_tables(tables).combine_chunks())


def checked(paths: list[Path], settings: IngestSettings, *, name: str = "made") -> list[FileInfo]:
    return inventory([SourceFile(name, 1, str(path)) for path in paths], settings).infos


def copies_of(
    infos: list[FileInfo],
    num_events: int,
    folder: Path,
    *,
    settings: IngestSettings = SETTINGS,
    seed: int = 1,
    events_per_file: int = EVENTS_PER_FILE,
) -> list[FileInfo]:
    """The checked files of a new load-test sample of these files."""
    folder.mkdir()
    rng = np.random.default_rng(seed)
    written = write_load_test(infos, settings, num_events, folder, rng=rng, events_per_file=events_per_file)
    return [info for name, paths in written.items() for info in checked(paths, LOAD_TEST, name=name)]


@pytest.fixture(scope="module")
def parents(bundled_files: list[FileInfo]) -> Sample:
    """One bundled file."""
    return sample_of([info for info in bundled_files if Path(info.path).name == "ttbar_13TeV_PU20_0.root"], SETTINGS)


@pytest.fixture(scope="module")
def copies(parents: Sample, tmp_path_factory: pytest.TempPathFactory) -> Sample:
    """A load-test sample of `parents`."""
    folder = tmp_path_factory.mktemp("copies") / "sample"
    return sample_of(copies_of(parents.infos, NUM_COPIES, folder), LOAD_TEST)


@pytest.fixture
def made_files(tmp_path: Path) -> list[FileInfo]:
    """Two files, of three events and of two."""
    events = drawn_events(5)
    paths = [write_delphes(tmp_path / "a.root", events[:3]), write_delphes(tmp_path / "b.root", events[3:])]
    return checked(paths, SETTINGS)


@pytest.mark.parametrize("num_events", [1, 3, 4, 5, 7, 10, 23])
@pytest.mark.slow
def test_exactly_the_events_asked_for_from_all_files_in_turn(
    made_files: list[FileInfo], tmp_path: Path, num_events: int
) -> None:
    infos = copies_of(made_files, num_events, tmp_path / "copies")
    table = sample_of(infos, LOAD_TEST).table
    assert sum(info.entries for info in infos) == table.num_rows == num_events
    round_of_files = [(info.uuid, entry) for info in made_files for entry in range(info.entries)]
    expected = [round_of_files[event % 5] for event in range(num_events)]
    assert list(zip(table["origin_uuid"].to_pylist(), table["origin_entry"].to_pylist(), strict=True)) == expected


def test_a_real_file_gives_exactly_the_events_asked_for(copies: Sample) -> None:
    assert all(info.is_load_test for info in copies.infos)
    assert sum(info.entries for info in copies.infos) == NUM_COPIES


def test_each_sample_has_files_of_its_own(made_files: list[FileInfo], tmp_path: Path) -> None:
    infos = [made_files[0], made_files[1]._replace(sample="other", label=0)]
    written = write_load_test(infos, SETTINGS, 7, tmp_path, rng=np.random.default_rng(1))
    assert {name: [path.name for path in paths] for name, paths in written.items()} == {
        "made": ["made_0000.root"],
        "other": ["other_0000.root"],
    }
    for info in infos:
        (own,) = checked(written[info.sample], LOAD_TEST)
        assert own.entries == 7
        assert set(sample_of([own], LOAD_TEST).table["origin_uuid"].to_pylist()) == {info.uuid}


def test_large_samples_are_cut_into_files_of_different_identity(made_files: list[FileInfo], tmp_path: Path) -> None:
    infos = copies_of(made_files, 23, tmp_path / "copies", events_per_file=6)
    assert sum(info.entries for info in infos) == 23
    assert len(infos) >= 3
    # A block (here a file of 3 or 2 events) is never torn.
    assert all(info.entries <= 6 + 2 for info in infos)
    table = sample_of(infos, LOAD_TEST).table
    expected = [(info.uuid, entry) for info in infos for entry in range(info.entries)]
    assert list(zip(table["file_uuid"].to_pylist(), table["entry"].to_pylist(), strict=True)) == expected
    assert len({info.uuid for info in [*infos, *made_files]}) == len(infos) + 2


def test_copies_have_their_own_identity_and_name_their_parents(parents: Sample, copies: Sample) -> None:
    (parent,) = parents.infos
    (own,) = copies.infos
    assert own.uuid != parent.uuid
    table = copies.table
    assert set(table["file_uuid"].to_pylist()) == {own.uuid}
    assert set(table["origin_uuid"].to_pylist()) == {parent.uuid}
    entries = table["entry"].to_numpy()
    np.testing.assert_array_equal(table["origin_entry"].to_numpy(), entries % parent.entries)
    # The same events pass as among the parents.
    passing = np.isin(np.arange(NUM_COPIES) % parent.entries, parents.table["entry"].to_numpy())
    np.testing.assert_array_equal(entries, np.flatnonzero(passing))


@pytest.fixture(params=["made", "bundled"])
def family(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Sample, Sample]:
    """Parents and their copies, of made events and of a bundled file."""
    if request.param == "bundled":
        return request.getfixturevalue("parents"), request.getfixturevalue("copies")
    made = sample_of(checked([write_delphes(tmp_path / "a.root", drawn_events(40))], SETTINGS), SETTINGS)
    return made, sample_of(copies_of(made.infos, 100, tmp_path / "copies"), LOAD_TEST)


def wrapped(angle: NDArray[Any]) -> NDArray[np.float64]:
    return np.remainder(np.asarray(angle, dtype=np.float64) + np.pi, 2 * np.pi) - np.pi


def pairs(family: tuple[Sample, Sample]) -> list[tuple[Row, Row]]:
    """Every copy with its parent: collections as flat arrays of the event, and the numbers of the event."""
    parents, copies = family
    of_parents = [event_of(parents.raws[block], row) for block, row in parents.entries()]
    found = []
    for block, row in copies.entries():
        origin = copies.raws[block].origin
        assert origin is not None
        found.append((of_parents[int(origin[1][row])], event_of(copies.raws[block], row)))
    assert len(found) > 2 * len(of_parents)
    return found


def event_of(raw: RawEvents, row: int) -> Row:
    event: Row = {name: values[row] for name, values in raw.scalars.items()}
    for name, jagged in raw.collections.items():
        first, last = jagged.offsets[row : row + 2]
        event[name] = {field: values[first:last] for field, values in jagged.fields.items()}
    return event


@pytest.mark.slow
def test_what_does_not_depend_on_the_frame_is_unchanged(family: tuple[Sample, Sample]) -> None:
    for parent, copy in pairs(family):
        assert (copy["met"], copy["weight"]) == (parent["met"], parent["weight"])
        for name, fields in COLLECTIONS.items():
            for field in fields:
                old, new = parent[name][field], copy[name][field]
                assert (old.dtype, old.shape) == (new.dtype, new.shape)
                if field in UNTOUCHED:
                    np.testing.assert_array_equal(new, old)
                if field in SIGNED:
                    np.testing.assert_array_equal(np.abs(new), np.abs(old))
        old, new = parent["tracks"], copy["tracks"]
        np.testing.assert_allclose(np.hypot(new["x"], new["y"]), np.hypot(old["x"], old["y"]), rtol=1e-5)


def test_an_event_is_turned_as_a_whole(family: tuple[Sample, Sample]) -> None:
    turns = []
    for parent, copy in pairs(family):
        turn = float(wrapped(copy["met_phi"].astype(np.float64) - parent["met_phi"]))
        # Of all candidates and the missing energy against the latter: their spread bounds that of any two.
        against_met = [np.zeros(1)]
        for name in COLLECTIONS:
            change = copy[name]["phi"].astype(np.float64) - parent[name]["phi"]
            against_met.append(wrapped(change - turn))
            assert (np.abs(copy[name]["phi"]) <= np.float32(np.pi)).all()
        together = np.concatenate(against_met)
        assert np.ptp(together) <= 1e-5
        old, new = parent["tracks"], copy["tracks"]
        away = np.hypot(old["x"], old["y"]) > 1e-3
        vertex_turn = np.arctan2(new["y"], new["x"])[away] - np.arctan2(old["y"], old["x"])[away]
        np.testing.assert_allclose(wrapped(vertex_turn - turn), 0, atol=1e-5)
        turns.append(turn)
    # Every copy by an angle of its own, anywhere around.
    assert len(set(np.round(turns, 6))) > 0.99 * len(turns)
    assert set(np.floor(np.array(turns) / (np.pi / 2)).astype(int)) == {-2, -1, 0, 1}


def test_an_event_is_mirrored_as_a_whole_or_not_at_all(family: tuple[Sample, Sample]) -> None:
    signs = []
    for parent, copy in pairs(family):
        kept, mirrored = (
            all(
                np.array_equal(copy[name][field], sign * parent[name][field])
                for name, fields in COLLECTIONS.items()
                for field in fields
                if field in SIGNED
            )
            for sign in (np.float32(1), np.float32(-1))
        )
        assert kept != mirrored
        signs.append(mirrored)
    assert 0.3 < np.mean(signs) < 0.7


def test_high_level_features_but_the_angles_are_those_of_the_parent(parents: Sample, copies: Sample) -> None:
    settings = FeatureSettings()
    of_parents, of_copies = build_features(parents.table, settings), build_features(copies.table, settings)
    row_of = {entry: row for row, entry in enumerate(parents.table["entry"].to_numpy()[of_parents.selected].tolist())}
    origins = copies.table["origin_entry"].to_numpy()
    # An isolation at its limit may fall to the other side, when a candidate at the edge of the cone does.
    same_fate = np.array([origin in row_of for origin in origins]) == (of_copies.outcome == 0)
    assert same_fate.mean() > 0.99
    both = [
        (row, row_of[origin]) for row, origin in enumerate(origins[of_copies.selected].tolist()) if origin in row_of
    ]
    assert len(both) > 100
    new = of_copies.hlf[[row for row, _ in both]]
    old = of_parents.hlf[[row for _, row in both]]
    for column, name in enumerate(HLF_NAMES):
        if name in ISOLATIONS:
            assert (np.abs(new[:, column] - old[:, column]) < 1e-4).mean() > 0.99, name
        elif name == "mt":
            # Near zero it is the square root of a rounding error.
            np.testing.assert_allclose(new[:, column], old[:, column], rtol=1e-4, atol=0.1, err_msg=name)
        elif name not in ANGLES:
            np.testing.assert_allclose(new[:, column], old[:, column], rtol=1e-5, err_msg=name)
    eta = HLF_NAMES.index("lepton_eta")
    np.testing.assert_array_equal(np.abs(new[:, eta]), np.abs(old[:, eta]))
    for name in ANGLES:
        assert (new[:, HLF_NAMES.index(name)] != old[:, HLF_NAMES.index(name)]).any(), name


def splits_of(table: pa.Table, folder: Path) -> tuple[pa.Table, NDArray[np.int8]]:
    """Unmixed rows of a table, and the split of each."""
    folder.mkdir()
    pq.write_table(table, folder / "part.parquet")
    output = run_kernels(
        EventsFile("part.parquet", "made", "digest", str(folder / "part.parquet")), FeatureSettings(), folder
    )
    path = output.path(folder.parent)
    return read_unmixed(path), keys_of(path, FeatureSettings()).split


def test_a_million_copies_were_refused_as_the_same_event_twice(parents: Sample) -> None:
    """Of 667 copies of an event, two may have the same MET to the last bit."""
    for raw in parents.raws:
        other = turned(raw, np.random.default_rng(1))
        other = other._replace(scalars={**other.scalars, "met_phi": raw.scalars["met_phi"]})
        keys = event_keys(raw.scalars, raw.collections)
        assert keys.any()
        assert not np.any((keys == event_keys(other.scalars, other.collections)) & (keys != 0))


def test_copies_are_in_the_split_of_their_parents(parents: Sample, copies: Sample, tmp_path: Path) -> None:
    old, old_splits = splits_of(parents.table, tmp_path / "parents")
    new, new_splits = splits_of(copies.table, tmp_path / "copies")
    split_of = dict(zip(old["entry"].to_pylist(), old_splits.tolist(), strict=True))
    compared = [
        (split_of[origin], split)
        for origin, split in zip(new["origin_entry"].to_pylist(), new_splits.tolist(), strict=True)
        if origin in split_of
    ]
    assert len(compared) > 200
    assert all(parent == copy for parent, copy in compared)
    assert {split for _, split in compared} == set(range(len(SPLITS)))
    # Split by identities of their own, they would not be.
    own = split_index(new["file_uuid"].to_pylist(), new["entry"].to_numpy(), FeatureSettings().split)
    assert (own != new_splits).mean() > 0.2


def test_copies_of_copies_name_the_first_origin(made_files: list[FileInfo], tmp_path: Path) -> None:
    children = copies_of(made_files, 7, tmp_path / "children")
    grandchildren = copies_of(children, 17, tmp_path / "grandchildren", settings=LOAD_TEST, seed=2)
    table = sample_of(grandchildren, LOAD_TEST).table
    round_of_files = [(info.uuid, entry) for info in made_files for entry in range(info.entries)]
    expected = [round_of_files[event % 7 % 5] for event in range(17)]
    assert list(zip(table["origin_uuid"].to_pylist(), table["origin_entry"].to_pylist(), strict=True)) == expected
    assert set(table["file_uuid"].to_pylist()) == {grandchildren[0].uuid}


def test_an_empty_file_adds_nothing_and_does_not_hang(made_files: list[FileInfo], tmp_path: Path) -> None:
    empty = checked([write_delphes(tmp_path / "empty.root", [])], SETTINGS)
    infos = copies_of([*empty, *made_files], 7, tmp_path / "copies")
    assert [info.entries for info in infos] == [7]
