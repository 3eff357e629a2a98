"""A stage does not start without space for its output."""

from __future__ import annotations

import errno
import shutil
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from delphes_files import write_delphes
from made_events import distinct, lepton, made_event
from rich.console import Console
from spark_in_process import Here

from features.settings import FeatureSettings
from pipeline import run_folder
from pipeline.config import Config
from pipeline.errors import MachineError
from pipeline.run_folder import RunFolder
from pipeline.runner import Runner
from pipeline.runs import space
from pipeline.runs.code_meaning import code_digests
from pipeline.runs.outputs import OutputFile
from pipeline.runs.space import LEAST_BYTES, bytes_needed, out_of_room, size_of
from pipeline.runs.store import StageStore, Version
from pipeline.stages.features import Features
from pipeline.stages.ingest import Ingest

NO_ROOM = r"(?s)^ingest cannot run on this machine:.*The disk of .* free, but the run needs"


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture
def before(tmp_path: Path) -> Path:
    folder = tmp_path / "0001-ab"
    (folder / "train").mkdir(parents=True)
    # Sparse: it has a size and takes no space.
    with (folder / "train" / "part.parquet").open("wb") as file:
        file.truncate(3 * LEAST_BYTES)
    return folder


def free(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**12, 10**12 - number, number))


def test_the_last_version_says_how_much(before: Path) -> None:
    assert size_of(before.rglob("*")) == 3 * LEAST_BYTES
    assert bytes_needed(before) == 3 * LEAST_BYTES


def test_what_is_taken_over_takes_no_space(before: Path) -> None:
    old = [before / "train" / "part.parquet", before / "train" / "gone.parquet"]
    with (before / "small").open("wb") as file:
        file.truncate(LEAST_BYTES + 1)
    assert bytes_needed(before, old) == LEAST_BYTES + 1


class Nights:
    """Ingest, night after night, on a disk that has less room than all events take; no JVM is started."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.data = folder / "data"
        self.data.mkdir()
        self.run_dir = folder / "run"
        self._patch = monkeypatch
        monkeypatch.setattr(space, "LEAST_BYTES", 1)
        monkeypatch.setattr(Ingest, "needs", ())
        provider = SimpleNamespace(context=lambda **_: Here(), num_tasks=int, stop=lambda: None)
        monkeypatch.setattr(run_folder, "SparkProvider", lambda _: provider)

    def arrive(self, *names: str) -> None:
        """Files, with other events each."""
        for name in names:
            events = [made_event(met=float(n), electrons=[lepton(30.0 + n, 0, 0)]) for n in range(len(name), 60)]
            write_delphes(self.data / f"{name}.root", distinct(events))

    def pass_by(self, *, room: float, force: bool = False, **changes: Any) -> str:
        """What is printed.

        Args:
            room: Free space, as a share of the last version.
            force: Of the run.
            changes: Sections of the config.
        """
        current = self.current()
        share = round(room * size_of(current.folder.rglob("*"))) if current else LEAST_BYTES
        free(self._patch, share)
        samples = [
            {"name": name, "label": label, "files": [str(self.data / f"{name}*.root")]}
            for label, name in enumerate(("qcd", "ttbar", "wjets"))
        ]
        config = Config.model_validate(
            {"run_dir": self.run_dir, "classes": ["QCD", "ttbar", "W+jets"], "samples": samples, **changes}
        )
        shown = StringIO()
        Runner(RunFolder(config, Console(file=shown, width=1000))).run(["ingest"], force=force)
        return shown.getvalue()

    def current(self) -> Version | None:
        return StageStore(self.run_dir, "ingest").current()


@pytest.fixture
def nights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nights:
    made = Nights(tmp_path, monkeypatch)
    made.arrive("qcd_0", "ttbar_0", "wjets_0")
    made.pass_by(room=1)
    return made


def test_a_night_with_a_new_file_needs_no_room_for_all_events(nights: Nights) -> None:
    # The first after the first version too, of which no file is linked yet.
    for number in (1, 2):
        nights.arrive(f"qcd_{number}", f"ttbar_{number}")
        assert "2 files read" in nights.pass_by(room=0.8)
    shown = nights.pass_by(room=0.8, ingest={"until": "2100-01-01T00:00:00Z"})
    assert "up to date" in shown
    (nights.data / "qcd_2.root").unlink()
    assert "0 files read" in nights.pass_by(room=0.8)


@pytest.mark.parametrize(
    "how",
    [{"force": True}, {"ingest": {"min_track_pt": 0.6}}, {"ingest": {"entries_per_task": 10}}],
    ids=["force", "threshold", "pieces"],
)
@pytest.mark.slow
def test_where_all_is_made_anew_links_spare_nothing(nights: Nights, how: dict[str, Any]) -> None:
    nights.arrive("qcd_1")
    nights.pass_by(room=0.8)
    nights.arrive("qcd_2")
    before = nights.current()
    assert before is not None
    with pytest.raises(MachineError, match=NO_ROOM):
        nights.pass_by(room=0.8, **how)
    assert nights.current() == before


def test_changed_code_makes_all_anew(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.runs.store.Version.ran_same_code", lambda *_: False)
    nights.arrive("qcd_1")
    with pytest.raises(MachineError, match=NO_ROOM):
        nights.pass_by(room=0.8)


def test_files_that_were_all_replaced_are_made_anew(nights: Nights) -> None:
    nights.arrive("qcd_0", "ttbar_0", "wjets_0")
    with pytest.raises(MachineError, match=NO_ROOM):
        nights.pass_by(room=0.8)


def features_context(folder: Path, **settings: Any) -> Any:
    """Of a features stage whose last version has kernel outputs of two events parts; one of these is another now."""
    parts = [{"name": f"{name}.parquet", "sample": "qcd", "digest": name} for name in ("old", "changed", "new")]
    old = [
        {
            "name": f"{name}.parquet",
            "sample": "qcd",
            "digest": digest,
            "counts": {},
            "weights": {},
            "lies_in": "0001-ab",
            "size": 1,
        }
        for name, digest in (("old", "old"), ("changed", "another"))
    ]
    made = {
        "config": {"features": FeatureSettings().model_dump(mode="json")},
        "counters": {"kernel_outputs": old},
        "fingerprint": {"code": code_digests(["features.kernel_pass"])},
    }
    files = [OutputFile(f"events/{part['name']}", 1, part["digest"], part["digest"]).to_json() for part in parts]
    ingested = Version("0002-cd", folder / "0002-cd", {"counters": {"parts": parts}, "outputs": files})
    return SimpleNamespace(
        config=SimpleNamespace(features=FeatureSettings(**settings)),
        current=Version("0001-ab", folder / "0001-ab", made),
        upstream={"ingest": ingested},
        data_dir=folder / "0002-ab",
    )


def test_features_make_kernel_outputs_of_changed_events_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, changed = (tmp_path / "kernels" / "0001-ab" / f"{name}.arrow" for name in ("old", "changed"))
    assert Features().remade(features_context(tmp_path)) == [changed]
    assert Features().remade(features_context(tmp_path, rows_per_group=10)) == [changed]
    assert Features().remade(features_context(tmp_path, isolation_cone=0.4)) == [old, changed]
    monkeypatch.setattr(Version, "ran_same_code", lambda *_: False)
    assert Features().remade(features_context(tmp_path)) == [old, changed]


def test_files_beside_a_version_that_are_made_again_count(tmp_path: Path) -> None:
    (tmp_path / "version").mkdir()
    with (tmp_path / "beside").open("wb") as file:
        file.truncate(3 * LEAST_BYTES)
    assert bytes_needed(tmp_path / "version", (), [tmp_path / "beside"]) == 3 * LEAST_BYTES


def test_a_little_is_asked_for_in_any_case(tmp_path: Path) -> None:
    assert bytes_needed(None) == bytes_needed(tmp_path) == LEAST_BYTES


def test_a_full_disk_is_known_behind_what_a_library_makes_of_it() -> None:
    # matplotlib's PDF writer fails so, when it closes the file that it could not write.
    full = OSError(errno.ENOSPC, "No space left on device")
    found = None
    try:
        try:
            raise full
        finally:
            raise AttributeError("'Stream' object has no attribute 'pos'")
    except AttributeError as error:
        found = error
    assert out_of_room(found) is full
    assert out_of_room(OSError(errno.ENOENT, "No such file")) is None
