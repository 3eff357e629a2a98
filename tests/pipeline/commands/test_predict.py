"""`predict`, in this process."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path

import awkward as ak
import numpy as np
import pyarrow.parquet as pq
import pytest
from delphes_files import damage, write_delphes
from minimal_configs import MINIMAL
from night_files import FIRST, NAMES, Night, events
from rich.console import Console
from stages_in_process import without_spark

from hep_core.input_errors import InputFileError
from ingestion.errors import MissingBranchError, WrongBranchTypeError
from pipeline.commands.predict import FailedFile, FileScores, predict
from pipeline.config import Config, load_config
from pipeline.errors import ConfigError, RunFolderError
from pipeline.run_folder import RunFolder
from pipeline.runs.own_folders import is_claimed

pytestmark = pytest.mark.slow


class Scoring(Night):
    """A trained network, whose samples state the tree, and the output of `predict`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        samples = []
        for label, name in enumerate(NAMES):
            write_delphes(self.data / f"{name}_0.root", events(FIRST[name]), tree="Events")
            files = [f"{self.data}/{name}_*.root"]
            samples.append({"name": name, "label": label, "files": files, "tree": "Events"})
        self.run(
            *("ingest", "features", "train"),
            samples=samples,
            train={"workers": 1, "epochs": 1, "batch_size": 16},
            model={"names": ["hlf"]},
        )

    def predict(self, out: Path, *files: str, keep: Sequence[str] = ()) -> str:
        """Score some files; returns the output."""
        output = StringIO()
        config = load_config(str(self.folder / "config.yaml"))
        run_folder = RunFolder(config, Console(file=output, width=1000))
        paths = [str(self.data / file) for file in files]
        model = str(self.version("train").folder / "hlf")
        predict(run_folder, paths, out, model=model, parquet=True, keep=keep)
        return output.getvalue()


@pytest.fixture(scope="module")
def scoring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scoring]:
    with pytest.MonkeyPatch.context() as patch:
        without_spark(patch, tmp_path_factory.mktemp("scratch"))
        patch.setattr("pipeline.commands.predict.find_spec", lambda _: None)
        yield Scoring(tmp_path_factory.mktemp("night"))


def test_events_of_the_training_are_known_where_the_samples_state_the_tree(
    scoring: Scoring, tmp_path: Path
) -> None:
    assert "was trained on" in scoring.predict(tmp_path / "out", "qcd_0.root")


def test_a_file_without_entries_has_scores_without_rows(scoring: Scoring, tmp_path: Path) -> None:
    write_delphes(scoring.data / "none.root", [], tree="Events")

    scoring.predict(tmp_path / "out", "none.root", "qcd_0.root")

    assert pq.read_table(tmp_path / "out" / "none.scores.parquet").num_rows == 0
    assert pq.read_table(tmp_path / "out" / "qcd_0.scores.parquet").num_rows == 40


def numbered_file(path: Path, first: int, count: int) -> None:
    """Write a file with a branch `eventNumber`, which counts from a number."""
    event_numbers = np.arange(first, first + count)
    rows = events(first, count)
    write_delphes(path, rows, tree="Events", more={"eventNumber": event_numbers})


@pytest.mark.parametrize("names", [["numbers.root", "no_entries.root"], ["no_entries.root"]])
def test_a_branch_is_kept_beside_files_without_entries(
    scoring: Scoring, tmp_path: Path, names: list[str]
) -> None:
    numbered_file(scoring.data / "numbers.root", 8000, 8)
    numbered_file(scoring.data / "no_entries.root", 9000, 0)

    scoring.predict(tmp_path / "out", *names, keep=["eventNumber"])

    for name in names:
        table = pq.read_table((tmp_path / "out" / name).with_suffix(".scores.parquet"))
        expected = list(range(8000, 8008)) if name == "numbers.root" else []
        assert table["eventNumber"].to_pylist() == expected
        assert table.schema.field("eventNumber").type == "int64"


def test_a_branch_that_files_without_entries_lack_is_named_with_the_nearest(
    scoring: Scoring, tmp_path: Path
) -> None:
    numbered_file(scoring.data / "no_entries.root", 9000, 0)

    with pytest.raises(MissingBranchError, match=r"'eventNumbre'.* Nearest: eventNumber"):
        scoring.predict(tmp_path / "out", "no_entries.root", keep=["eventNumbre"])


def test_text_cannot_be_kept_from_files_without_entries(scoring: Scoring, tmp_path: Path) -> None:
    with_text = {"generator": ak.Array(["pythia"])}
    write_delphes(scoring.data / "text.root", [], tree="Events", more=with_text)

    with pytest.raises(WrongBranchTypeError, match="holds text") as caught:
        scoring.predict(tmp_path / "out", "text.root", keep=["generator"])

    assert "If it is a branch of --keep" in str(caught.value)
    assert "ingest." not in str(caught.value)


def test_momenta_that_look_like_mev_are_named(scoring: Scoring, tmp_path: Path) -> None:
    in_mev = [event | {"met": 1000.0 * event["met"]} for event in events(FIRST["qcd"])]
    write_delphes(scoring.data / "new_mev.root", in_mev, tree="Events")

    output = scoring.predict(tmp_path / "out", "new_mev.root")

    assert "note: Momenta of MET of the files are very large: are they in MeV?" in output
    assert "MeV" not in scoring.predict(tmp_path / "usual", "qcd_0.root")


@pytest.mark.parametrize("names", [["damaged.root"], ["damaged.root", "another.root"]])
def test_files_that_cannot_be_read_are_named_and_leave_no_scores(
    scoring: Scoring, tmp_path: Path, names: list[str]
) -> None:
    for first, name in zip((5000, 6000), names, strict=False):
        damage(write_delphes(scoring.data / name, events(first), tree="Events"), tree="Events")

    with pytest.raises(InputFileError) as exception_info:
        scoring.predict(tmp_path / "out", "qcd_0.root", *names)

    for name in names:
        assert name in str(exception_info.value)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_names_the_file_of_scores(
    scoring: Scoring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_room(*_: object, **__: object) -> FailedFile:
        return FailedFile("qcd_0.scores.parquet", OSError(errno.EFBIG, "File too large"))

    monkeypatch.setattr("pipeline.commands.predict._score_file", without_room)
    with pytest.raises(
        RunFolderError, match=r"out/qcd_0\.scores\.parquet cannot be written .*`ulimit -f`.*--out"
    ):
        scoring.predict(tmp_path / "out", "qcd_0.root")


def test_the_versions_that_it_reads_are_claimed_until_its_end(
    scoring: Scoring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model that was named, and the features of its training."""
    folders = [scoring.version(stage).folder for stage in ("train", "features")]
    claims = []

    def record_claims(*_: object, **__: object) -> FileScores:
        claims.extend(is_claimed(folder) for folder in folders)
        return FileScores("qcd_0.scores.parquet", 0, {}, {"events": 0})

    monkeypatch.setattr("pipeline.commands.predict._score_file", record_claims)
    scoring.predict(tmp_path / "out", "qcd_0.root")

    assert claims == [True, True]
    assert not any(is_claimed(folder) for folder in folders)


def test_an_empty_path_of_a_model_is_not_the_model_in_use(tmp_path: Path) -> None:
    """A variable of the shell that is not set gives such a path."""
    config = Config.model_validate({**MINIMAL, "run_dir": str(tmp_path)})
    run_folder = RunFolder(config, Console(quiet=True))

    with pytest.raises(ConfigError, match="--model: the path is empty"):
        predict(run_folder, ["a.root"], tmp_path / "out", model="")
