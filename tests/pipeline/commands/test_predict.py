"""`predict`, in this process."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
from delphes_files import damage, write_delphes
from night_files import FIRST, NAMES, Night, events
from rich.console import Console
from stages_in_process import without_spark

from hep_core.input_errors import InputFileError
from pipeline.commands.predict import FailedFile, predict
from pipeline.config import load_config
from pipeline.errors import RunFolderError
from pipeline.run_folder import RunFolder

pytestmark = pytest.mark.slow


class Scoring(Night):
    """A trained network, whose samples state the tree, and what `predict` says."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for name, first in FIRST.items():
            write_delphes(self.data / f"{name}_0.root", events(first), tree="Events")
        samples = [
            {
                "name": name,
                "label": label,
                "files": [f"{self.data}/{name}_*.root"],
                "tree": "Events",
            }
            for label, name in enumerate(NAMES)
        ]
        training = {"workers": 1, "epochs": 1, "batch_size": 16}
        self.run(
            "ingest", "features", "train", samples=samples, train=training, model={"names": ["hlf"]}
        )

    def predict(self, out: Path, *files: str) -> str:
        output = StringIO()
        folder = RunFolder(
            load_config(str(self.folder / "config.yaml")), Console(file=output, width=1000)
        )
        model = self.version("train").folder / "hlf"
        predict(
            folder, [str(self.data / file) for file in files], out, model=str(model), parquet=True
        )
        return output.getvalue()


@pytest.fixture(scope="module")
def scoring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scoring]:
    with pytest.MonkeyPatch.context() as patch:
        without_spark(patch, tmp_path_factory.mktemp("scratch"))
        patch.setattr("pipeline.commands.predict.find_spec", lambda _: None)
        yield Scoring(tmp_path_factory.mktemp("night"))


def test_events_of_the_training_were_not_known_where_the_samples_state_the_tree(
    scoring: Scoring, tmp_path: Path
) -> None:
    assert "was trained on" in scoring.predict(tmp_path / "out", "qcd_0.root")


def test_files_that_fail_while_they_are_scored_are_named_and_leave_no_scores(
    scoring: Scoring, tmp_path: Path
) -> None:
    damaged = ("damaged.root", "another.root")
    for first, name in zip((5000, 6000), damaged, strict=True):
        damage(write_delphes(scoring.data / name, events(first), tree="Events"), tree="Events")
    for names in (damaged[:1], damaged):
        with pytest.raises(InputFileError) as caught:
            scoring.predict(tmp_path / "out", "qcd_0.root", *names)
        assert [name in str(caught.value) for name in damaged] == [
            name in names for name in damaged
        ]
        assert list(tmp_path.iterdir()) == []


def test_scores_without_room_name_their_file(
    scoring: Scoring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_room(*_: object, **__: object) -> FailedFile:
        return FailedFile("qcd_0.scores.parquet", OSError(errno.EFBIG, "File too large"))

    monkeypatch.setattr("pipeline.commands.predict._score_file", without_room)
    with pytest.raises(
        RunFolderError, match=r"out/qcd_0\.scores\.parquet cannot be written .*`ulimit -f`.*--out"
    ):
        scoring.predict(tmp_path / "out", "qcd_0.root")
