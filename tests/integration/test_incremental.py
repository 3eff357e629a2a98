"""Ingest and features again after files or settings changed: only what is new is made, and the result is that of a
fresh run.

One Spark serves all runs. Every test gets a copy of one finished run folder and its files.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, NoReturn
from uuid import NAMESPACE_URL, uuid5

import pyarrow.parquet as pq
import pytest
import uproot
from delphes_files import write_delphes
from made_events import Row, distinct, jet, lepton, made_event, tower, track
from rich.console import Console
from scipy.stats import beta

from features.schema import SPLITS
from pipeline.commands.clean import clean
from pipeline.config import Config
from pipeline.machine.spark_session import SparkProvider
from pipeline.run_folder import RunFolder
from pipeline.runner import Runner

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

NAMES = ("qcd", "ttbar", "wjets")
SHARES = {"train": 0.4, "val": 0.3, "test": 0.3}
MET, OTHER_MET = 123.4375, 125.5


class Lent:
    """In the place of the runner's own `SparkProvider`: one that outlives the run."""

    def __init__(self, provider: SparkProvider) -> None:
        self.context = provider.context
        self.num_tasks = provider.num_tasks

    def stop(self) -> None:
        """Others use it too."""


def events(first: int, *, count: int = 40) -> list[Row]:
    """Events that all differ; every eighth has no lepton at all, every fifth of the others none that is isolated."""
    return [
        made_event(
            met=MET if n == 1 else 20.0 + first + n,
            electrons=[] if n % 8 == 0 else [lepton(30.0 + n, 0.1, 0.2)],
            # One beside the lepton, one in a cone of 0.4 about it but not of 0.3, one far away.
            tracks=[
                track(40.0 if n % 5 == 0 else 1.0, 0.15, 0.25),
                track(3.0, 0.45, 0.2),
                track(2.0 + 0.1 * n, 1.0, -1.0 - 0.01 * n),
            ],
            photons=[tower(5.0, 1.5, 0.01 * n)],
            jets=[jet(40.0 + first + n, 0.5, 1.0)],
        )
        for n in range(count)
    ]


def write(path: Path, rows: list[Row], *, identity: str = "") -> Path:
    """A file that is the same every time (the UUID depends on `identity`, by default its name), and not compressed."""
    uuid = uuid5(NAMESPACE_URL, identity or path.name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uproot, "recreate", partial(uproot.recreate, compression=None, uuid_function=lambda: uuid))
        return write_delphes(path, rows)


def later(path: Path, change: Callable[[], object] = lambda: None) -> None:
    """Do something to a file, after which its time is another for sure."""
    before = path.stat()
    change()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 10**9))


def change_in_place(path: Path) -> None:
    """Another MET in one event: the same UUID, size and number of entries."""
    content = path.read_bytes()
    old, new = struct.pack(">f", MET), struct.pack(">f", OTHER_MET)
    assert content.count(old) == 1
    later(path, lambda: path.write_bytes(content.replace(old, new)))


def damage(path: Path) -> None:
    """Overwrite the last basket of a branch: the file opens, but cannot be read to its end."""
    with uproot.open(path) as file:
        members = file["Delphes"]["EFlowTrack.PT"].all_members
        last = int(file["Delphes"]["EFlowTrack.PT"].num_baskets) - 1
        first, length = int(members["fBasketSeek"][last]), int(members["fBasketBytes"][last])
    content = bytearray(path.read_bytes())
    content[first : first + length] = b"\xff" * length
    path.write_bytes(content)


class Analysis:
    """Files of three samples in `folder/data`, and runs over them into `folder/run`."""

    def __init__(self, folder: Path, provider: SparkProvider) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.run_dir = folder / "run"
        self.provider = provider
        self.samples = [
            {"name": name, "label": label, "files": [str(self.data / f"{name}*.root")]}
            for label, name in enumerate(NAMES)
        ]

    def config(self, **changes: Any) -> Config:
        """Sections of the config given here replace the defaults; those of features are added to ours."""
        features = {"feed_workers": 1, "split": SHARES, **changes.pop("features", {})}
        return Config.model_validate(
            {"run_dir": self.run_dir, "samples": self.samples, "features": features, **changes}
        )

    def run(self, *stages: str, force: bool = False, **changes: Any) -> str:
        """What is printed, in long lines."""
        shown = StringIO()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pipeline.run_folder.SparkProvider", lambda _: Lent(self.provider))
            runner = Runner(RunFolder(self.config(**changes), Console(file=shown, width=1000)))
            runner.run(stages or ("ingest", "features"), force=force)
        return shown.getvalue()

    def version(self, stage: str) -> Path:
        pointer = self.run_dir / stage / "current.json"
        return pointer.parent / str(json.loads(pointer.read_text())["version"])

    def counters(self, stage: str) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.version(stage) / "manifest.json").read_text())["counters"]
        return content

    def parts(self) -> dict[str, bytes]:
        """Events parts by name, as they are on disk."""
        return {path.name: path.read_bytes() for path in (self.version("ingest") / "events").iterdir()}

    def inodes(self, stage: str, folder: str) -> dict[str, int]:
        return {path.name: path.stat().st_ino for path in (self.version(stage) / folder).iterdir()}

    def kernel_files(self) -> dict[str, Path]:
        """The kernel outputs that the features in use were made from, by name of the events part."""
        outputs = self.counters("features")["kernel_outputs"]
        folder = self.run_dir / "features" / "kernels"
        return {each["name"]: folder / each["lies_in"] / Path(each["name"]).with_suffix(".arrow") for each in outputs}

    def dataset(self) -> dict[str, list[dict[str, Any]]]:
        """All rows of the features, in their order, by row group."""
        found = self.version("features")
        return {
            str(path.relative_to(found)): pq.read_table(path).to_pylist()
            for split in SPLITS
            for path in sorted((found / split).iterdir())
        }

    def splits(self) -> dict[tuple[str, int], str]:
        """Split of every event."""
        return {
            (row["file_uuid"], row["entry"]): name.split("/")[0]
            for name, rows in self.dataset().items()
            for row in rows
        }

    def fresh(self, *stages: str, **changes: Any) -> Analysis:
        """The same files (in the same place) into a new run folder."""
        other = Analysis(self.folder, self.provider)
        other.run_dir = self.folder / "fresh"
        other.run(*stages, **changes)
        return other


@pytest.fixture(scope="module")
def finished(provider: SparkProvider, tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    made = Analysis(tmp_path_factory.mktemp("finished"), provider)
    made.data.mkdir()
    for number, name in enumerate(NAMES):
        write(made.data / f"{name}_0.root", events(100 * number, count=40 - 4 * number))
    made.run()
    return made


@pytest.fixture
def analysis(finished: Analysis, provider: SparkProvider, tmp_path: Path) -> Iterator[Analysis]:
    """A copy of what was made: moving all files changes nothing."""
    for name in ("data", "run"):
        shutil.copytree(getattr(finished, name.replace("run", "run_dir")), tmp_path / name)
    yield Analysis(tmp_path, provider)
    shutil.rmtree(tmp_path)


def add_file(analysis: Analysis) -> Path:
    return write(analysis.data / "qcd_1.root", events(500))


def uuid_of(name: str) -> str:
    return str(uuid5(NAMESPACE_URL, name))


def test_moving_all_files_and_the_run_folder_changes_nothing(analysis: Analysis, tmp_path: Path) -> None:
    for path in analysis.data.iterdir():
        path.rename(path.with_name(path.name.replace("_0", "_renamed")))
    shown = analysis.run()
    assert shown.splitlines() == ["ingest: up to date", "features: up to date"]


def test_touching_files_changes_nothing(analysis: Analysis) -> None:
    for path in analysis.data.iterdir():
        later(path)
    assert analysis.run().splitlines() == ["ingest: up to date", "features: up to date"]


def test_only_an_added_file_is_read_and_the_result_is_that_of_a_fresh_run(analysis: Analysis) -> None:
    old_parts, old_inodes = analysis.parts(), analysis.inodes("ingest", "events")
    added = add_file(analysis)
    shown = analysis.run("ingest")
    assert f"input added: {added}" in shown
    assert "1 files read, 3 reused" in shown
    assert analysis.counters("ingest")["files_read"] == 1
    parts, inodes = analysis.parts(), analysis.inodes("ingest", "events")
    assert {name: parts[name] for name in old_parts} == old_parts
    assert {name: inodes[name] for name in old_inodes} == old_inodes
    fresh = analysis.fresh("ingest")
    assert fresh.counters("ingest")["files_read"] == 4
    assert fresh.parts() == parts
    incremental, anew = analysis.counters("ingest"), fresh.counters("ingest")
    assert {**incremental, "files_read": 4} == anew


def test_features_of_old_parts_are_taken_over_and_the_result_is_that_of_a_fresh_run(analysis: Analysis) -> None:
    splits, kernels = analysis.splits(), analysis.kernel_files()
    add_file(analysis)
    shown = analysis.run()
    assert "kernels of 3 of 4 parts reused" in shown
    assert analysis.counters("features")["kernel_outputs_taken_over"] == 3
    after = analysis.kernel_files()
    assert {name: after[name] for name in kernels} == kernels
    # One copy of each, and none in a version.
    assert sorted(after.values()) == sorted((analysis.run_dir / "features").rglob("*.arrow"))
    assert not list(analysis.version("features").rglob("*.arrow"))
    # Events keep their split; those of the new file come in addition.
    new = analysis.splits()
    assert {key: new[key] for key in splits} == splits
    assert {uuid for uuid, _ in new.keys() - splits.keys()} == {uuid_of("qcd_1.root")}
    fresh = analysis.fresh()
    assert fresh.counters("features")["kernel_outputs_taken_over"] == 0
    assert fresh.dataset() == analysis.dataset()
    for name in ("dataset.json", "scaler.json", "cutflow.json"):
        assert (fresh.version("features") / name).read_bytes() == (analysis.version("features") / name).read_bytes()
    incremental, anew = analysis.counters("features"), fresh.counters("features")
    for each in incremental["kernel_outputs"] + anew["kernel_outputs"]:
        del each["lies_in"]
    assert {**incremental, "kernel_outputs_taken_over": 0} == anew


def test_clean_removes_kernel_outputs_that_the_features_in_use_were_not_made_from(analysis: Analysis) -> None:
    before = analysis.kernel_files()
    analysis.run("features", features={"isolation_cone": 0.4})
    after = analysis.kernel_files()
    assert not set(before.values()) & set(after.values())
    run_folder = RunFolder(analysis.config(), Console(quiet=True))
    planned = clean(run_folder, 5, dry_run=True)
    assert [each.folder for each in planned] == [next(iter(before.values())).parent]
    assert planned[0].freed_bytes > 1000
    assert clean(run_folder, 5) == planned
    assert not planned[0].folder.exists()
    assert sorted(after.values()) == sorted((analysis.run_dir / "features").rglob("*.arrow"))


def test_kernel_outputs_of_a_run_that_failed_are_removed_at_once(
    analysis: Analysis, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = analysis.kernel_files()
    monkeypatch.setattr("pipeline.stages.features._counters", failing)
    with pytest.raises(RuntimeError, match="on purpose"):
        analysis.run("features", features={"isolation_cone": 0.4})
    assert sorted(before.values()) == sorted((analysis.run_dir / "features").rglob("*.arrow"))


def test_kernel_outputs_of_a_killed_run_go_with_the_next(analysis: Analysis, monkeypatch: pytest.MonkeyPatch) -> None:
    before = analysis.kernel_files()
    with monkeypatch.context() as patch:
        # A killed process removes nothing.
        patch.setattr("pipeline.stages.features.remove_unused_outputs", lambda _: None)
        patch.setattr("pipeline.stages.features._counters", failing)
        with pytest.raises(RuntimeError, match="on purpose"):
            analysis.run("features", features={"isolation_cone": 0.4})
    assert len(list((analysis.run_dir / "features").rglob("*.arrow"))) == 2 * len(before)
    analysis.run("features", features={"rows_per_group": 10})
    assert analysis.kernel_files() == before
    assert sorted(before.values()) == sorted((analysis.run_dir / "features").rglob("*.arrow"))


def failing(_: object) -> NoReturn:
    raise RuntimeError("on purpose")


def test_a_removed_file_leaves_nothing_behind_and_nothing_is_read(analysis: Analysis) -> None:
    # A sample needs at least one file, so one is added first.
    added = add_file(analysis)
    before, splits = analysis.parts(), analysis.splits()
    analysis.run()
    added.unlink()
    shown = analysis.run()
    assert f"input removed: {added}" in shown
    assert analysis.counters("ingest")["files_read"] == 0
    assert analysis.parts() == before
    assert uuid_of("qcd_1.root") not in (analysis.version("ingest") / "manifest.json").read_text()
    assert analysis.counters("features")["kernel_outputs_taken_over"] == 3
    assert len(analysis.kernel_files()) == 3
    assert analysis.splits() == splits


def test_a_replaced_file_is_read_and_its_predecessor_forgotten(analysis: Analysis) -> None:
    path = analysis.data / "qcd_0.root"
    write(path, events(700), identity="another")
    shown = analysis.run("ingest")
    assert f"input added: {path}" in shown
    assert "input removed: " in shown
    assert analysis.counters("ingest")["files_read"] == 1
    assert {name.rsplit("-", 1)[0] for name in analysis.parts()} == {
        uuid_of(name) for name in ("another", "ttbar_0.root", "wjets_0.root")
    }


def test_a_file_changed_in_place_is_read_again_and_its_kernels_run_again(analysis: Analysis) -> None:
    path = analysis.data / "ttbar_0.root"
    before, parts = path.stat(), analysis.parts()
    change_in_place(path)
    assert path.stat().st_size == before.st_size
    shown = analysis.run()
    assert f"input changed: {path}" in shown
    assert analysis.counters("ingest")["files_read"] == 1
    after = analysis.parts()
    assert {name.rsplit("-", 1)[0] for name in parts if parts[name] != after[name]} == {uuid_of("ttbar_0.root")}
    assert analysis.counters("features")["kernel_outputs_taken_over"] == 2
    met = {row["met"] for row in pq.read_table(analysis.version("ingest") / "events", columns=["met"]).to_pylist()}
    assert {MET, OTHER_MET} <= met
    assert analysis.fresh().dataset() == analysis.dataset()
    # It has been read: touching it now changes nothing.
    later(path)
    assert analysis.run().splitlines() == ["ingest: up to date", "features: up to date"]


@pytest.mark.parametrize(
    ("change", "taken_over"),
    [
        ({"split": {"train": 0.3, "val": 0.3, "test": 0.4}}, 3),
        ({"rows_per_group": 10}, 3),
        ({"balance": "downsample"}, 3),
        ({"isolation_cone": 0.4}, 0),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_kernels_run_again_only_for_settings_that_they_depend_on(
    analysis: Analysis, change: dict[str, Any], taken_over: int
) -> None:
    before = analysis.dataset()
    analysis.run(features=change)
    assert analysis.counters("features")["kernel_outputs_taken_over"] == taken_over
    fresh = analysis.fresh(features=change)
    assert fresh.dataset() == analysis.dataset()
    assert analysis.dataset() != before


def test_a_kernel_file_that_was_deleted_or_cut_is_made_again(analysis: Analysis) -> None:
    first, second, _ = kernels = analysis.kernel_files()
    contents = [path.read_bytes() for path in kernels.values()]
    kernels[first].unlink()
    kernels[second].write_bytes(contents[1][:-100])
    analysis.run("features", features={"rows_per_group": 10})
    assert analysis.counters("features")["kernel_outputs_taken_over"] == 1
    assert [path.read_bytes() for path in analysis.kernel_files().values()] == contents


@pytest.mark.parametrize("change", [{"min_track_pt": 1.5}, {"min_lepton_pt": 22.0}], ids=lambda each: next(iter(each)))
def test_all_files_are_read_again_with_other_thresholds(analysis: Analysis, change: dict[str, Any]) -> None:
    analysis.run("ingest", ingest=change)
    assert analysis.counters("ingest")["files_read"] == 3


def test_a_file_given_to_another_sample_is_read_again(analysis: Analysis) -> None:
    add_file(analysis)
    analysis.run("ingest")
    (analysis.data / "qcd_1.root").rename(analysis.data / "ttbar_1.root")
    analysis.run("ingest")
    assert analysis.counters("ingest")["files_read"] == 1
    table = pq.read_table(analysis.version("ingest") / "events", columns=["file_uuid", "sample", "label"])
    moved = [row for row in table.to_pylist() if row["file_uuid"] == uuid_of("qcd_1.root")]
    assert {(row["sample"], row["label"]) for row in moved} == {("ttbar", 1)}


def test_force_repairs_a_damaged_version_as_its_error_message_promises(analysis: Analysis) -> None:
    (damaged, *_) = sorted((analysis.version("ingest") / "events").iterdir())
    kernels, content = next(iter(analysis.kernel_files().values())), damaged.read_bytes()
    made = kernels.read_bytes()
    for path in (damaged, kernels):
        path.write_bytes(bytes(path.stat().st_size))
    analysis.run(force=True)
    assert (analysis.version("ingest") / "events" / damaged.name).read_bytes() == content
    assert next(iter(analysis.kernel_files().values())).read_bytes() == made


def test_a_file_damaged_inside_is_skipped_until_it_is_repaired(analysis: Analysis) -> None:
    before, dataset = analysis.counters("ingest"), analysis.dataset()
    path = add_file(analysis)
    damage(path)
    shown = analysis.run("ingest", "features", ingest={"on_bad_file": "skip"})
    assert f"skipped: {path} is damaged: entries 0 to 39 cannot be read" in shown
    after = analysis.counters("ingest")
    ((sample, where, reason),) = [(each["sample"], each["path"], each["reason"]) for each in after["bad_files"]]
    assert (sample, where, reason) == ("qcd", str(path), "DamagedFileError")
    assert (after["samples"], after["weights"], after["files_read"]) == (before["samples"], before["weights"], 0)
    assert analysis.dataset() == dataset
    again = analysis.run(ingest={"on_bad_file": "skip"})
    assert again.splitlines() == ["ingest: up to date", "features: up to date"]
    later(path, lambda: add_file(analysis))
    analysis.run("ingest", ingest={"on_bad_file": "skip"})
    repaired = analysis.counters("ingest")
    assert (repaired["files_read"], repaired["bad_files"]) == (1, [])
    assert repaired["samples"]["qcd"]["entries"] == 80


WEIGHT_FILES: dict[str, list[tuple[str, float, int]]] = {
    # (kind of event, weight, how many); two samples of the first class
    "qcd_a": [
        ("good", 2.0, 30),
        ("good", -1.0, 5),
        ("soft", -1.0, 4),
        ("not isolated", 2.0, 3),
        ("not finite", 2.0, 1),
    ],
    "qcd_b": [("good", 2.0, 25), ("soft", 2.0, 8)],
    "ttbar": [("good", 2.0, 30)],
    "wjets": [("good", 2.0, 40), ("not isolated", -1.0, 10)],
}
KINDS: dict[str, dict[str, Any]] = {
    "good": {"electrons": [lepton(40.0, 0.1, 0.2)]},
    "soft": {"electrons": [lepton(10.0, 0.1, 0.2)]},
    "not isolated": {"electrons": [lepton(40.0, 0.1, 0.2)], "tracks": [track(40.0, 0.15, 0.25)]},
    "not finite": {"electrons": [lepton(40.0, 0.1, 0.2)], "met": math.nan},
}


def test_what_was_accepted_is_not_mixed_with_what_is_read_anew(analysis: Analysis) -> None:
    # A version made with one threshold, blessed as one of another, must not lend its parts to the next.
    stricter = {"ingest": {"min_track_pt": 2.5}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.run_folder.SparkProvider", lambda _: Lent(analysis.provider))
        runner = Runner(RunFolder(analysis.config(**stricter), Console(file=StringIO())))
        assert runner.accept() == ["ingest", "features"]
        assert runner.accept() == []
    add_file(analysis)
    analysis.run("ingest", **stricter)
    assert analysis.counters("ingest")["files_read"] == 4
    for path in (analysis.version("ingest") / "events").iterdir():
        kept = [each["pt"] for tracks in pq.read_table(path)["tracks"].to_pylist() for each in tracks]
        assert min(kept) > 2.5


@pytest.fixture(scope="module")
def weighted(provider: SparkProvider, tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    made = Analysis(tmp_path_factory.mktemp("weighted"), provider)
    made.data.mkdir()
    made.samples = [
        # Cross-section / sum of weights: 2 and 0.5.
        {"name": name, "label": label, "files": [str(made.data / f"{name}.root")], "cross_section_pb": known}
        for name, label, known in zip(WEIGHT_FILES, (0, 0, 1, 2), (118.0, 33.0, None, None), strict=True)
    ]
    for name, groups in WEIGHT_FILES.items():
        rows = [made_event(**KINDS[kind], weight=weight) for kind, weight, count in groups for _ in range(count)]
        write(made.data / f"{name}.root", distinct(rows))
    # Small parts: their sums must be added up.
    made.run(ingest={"entries_per_task": 4})
    return made


def test_ingest_sums_weights_and_their_squares(weighted: Analysis) -> None:
    weights = weighted.counters("ingest")["weights"]
    found = {name: {step: weights[name][step] for step in ("entries", "events")} for name in WEIGHT_FILES}
    assert found == {
        # 30 x 2, 5 x -1, 4 x -1, 3 x 2, 1 x 2
        "qcd_a": {"entries": [59.0, 145.0], "events": [61.0, 137.0]},
        "qcd_b": {"entries": [66.0, 132.0], "events": [50.0, 100.0]},
        "ttbar": {"entries": [60.0, 120.0], "events": [60.0, 120.0]},
        "wjets": {"entries": [70.0, 170.0], "events": [70.0, 170.0]},
    }
    assert weights["qcd_a"]["rejected_nonfinite"] == [2.0, 4.0]
    assert weights["qcd_a"]["rejected_no_lepton"] == [-4.0, 4.0]


def steps_of(weighted: Analysis, column: str, *, by: str = "classes") -> list[dict[str, Any]]:
    content = json.loads((weighted.version("features") / "cutflow.json").read_text())
    return [step["columns"][column] for step in content[by]]


def test_the_cutflow_counts_events_and_weights_by_class(weighted: Analysis) -> None:
    found = [(each["events"], each["weight"], each["weight2"]) for each in steps_of(weighted, "QCD")]
    assert found == [
        # Both samples: 43 + 33 entries; less 1 not finite; less 4 + 8 soft; less 3 not isolated.
        # The weights of the first count twice, those of the second half.
        (76, 2 * 59 + 66 / 2, 4 * 145 + 132 / 4),
        (75, 2 * 57 + 66 / 2, 4 * 141 + 132 / 4),
        (63, 2 * 61 + 50 / 2, 4 * 137 + 100 / 4),
        (60, 2 * 55 + 50 / 2, 4 * 125 + 100 / 4),
        (60, 2 * 55 + 50 / 2, 4 * 125 + 100 / 4),
    ]
    (*_, alone) = steps_of(weighted, "qcd_a", by="samples")
    assert (alone["events"], alone["weight"], alone["weight2"]) == (35, 110.0, 500.0)


def test_efficiencies_are_those_computed_by_hand(weighted: Analysis) -> None:
    (first, *_, last) = steps_of(weighted, "QCD")
    assert first["efficiency"] == first["weighted_efficiency"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    raw, heavy = last["efficiency"], last["weighted_efficiency"]
    # Jeffreys' interval of 60 of 76: quantiles of a beta distribution.
    ends = beta.ppf([0.158655, 0.841345], 60.5, 16.5)
    assert (raw["value"], raw["low"], raw["high"]) == pytest.approx((60 / 76, *ends), rel=1e-4)
    assert heavy["value"] == pytest.approx(135 / 151)
    assert heavy["low"] < 135 / 151 < heavy["high"]


def test_weighted_efficiencies_may_be_above_one_where_events_of_negative_weight_are_rejected(
    weighted: Analysis,
) -> None:
    (*_, last) = steps_of(weighted, "W+jets")
    assert last["efficiency"]["value"] == pytest.approx(40 / 50)
    assert last["weighted_efficiency"]["value"] == pytest.approx(80 / 70)


def test_selected_weights_of_all_splits_are_those_of_the_cutflow(weighted: Analysis) -> None:
    selected = weighted.counters("features")["weights"]
    assert {name: selected[name]["selected"] for name in WEIGHT_FILES} == {
        "qcd_a": [55.0, 125.0],
        "qcd_b": [50.0, 100.0],
        "ttbar": [60.0, 120.0],
        "wjets": [80.0, 160.0],
    }
