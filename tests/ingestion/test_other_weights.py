"""Other weights of the generator: numbers of lists, whose lengths differ between samples, files and
events."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np
import pytest
from delphes_files import checked_files, select, write_delphes
from event_rows import distinct, event_row, lepton

from ingestion.branches import column_numbers
from ingestion.errors import ConflictingFilesError, MissingBranchError, WrongBranchTypeError
from ingestion.expressions import ColumnSource
from ingestion.files import expand, inventory
from ingestion.notes import unusual_content
from ingestion.settings import IngestSettings, SampleSettings


def written(path: Path, weights: dict[str, Any]) -> Path:
    """A Delphes file of four events, which other files do not hold, with these branches of weights and no others."""
    first = sum(map(ord, path.stem))
    rows = [event_row(electrons=[lepton(40.0 + first + index, 0, 0)]) for index in range(4)]
    return write_delphes(path, distinct(rows), without=["Event.Weight"], more=weights)


def lists_of(*lengths: int) -> ak.Array:
    """Lists of these lengths, event by event, with 1 to 9."""
    return ak.values_astype(
        ak.Array([list(range(1, length + 1)) for length in lengths]), np.float32
    )


def stated(path: Path, label: int = 0, **more: Any) -> SampleSettings:
    return SampleSettings(name=path.stem, label=label, files=[str(path)], **more)


def variations(samples: list[SampleSettings], **weights: str) -> list[list[float]]:
    """The column `weight_up` of the files of some samples."""
    settings = IngestSettings(weights={"up": "weight * LHEScale[7]", **weights})
    infos = inventory(expand(samples), settings).infos
    return [select(info, settings).table["weight_up"].to_pylist() for info in infos]


def test_a_weight_from_lists_of_other_lengths_is_refused_over_samples(tmp_path: Path) -> None:
    nine = written(tmp_path / "nine.root", {"LHEScale": lists_of(9, 9, 9, 9)})
    eight = written(tmp_path / "eight.root", {"LHEScale": lists_of(8, 8, 8, 8)})
    samples = [stated(nine), stated(eight)]
    message = (
        r"lists of 'up' \(ingest.weights\) have 9 numbers in sample 'nine': .*, "
        r"and 8 in sample 'eight'.*`weights: "
    )
    with pytest.raises(ConflictingFilesError, match=message):
        variations(samples)
    assert variations([samples[0], stated(eight, weights={"up": "weight * LHEScale[6]"})]) == [
        [8.0] * 4,
        [7.0] * 4,
    ]
    assert variations([samples[0], stated(eight, weights={"up": "none"})]) == [[8.0] * 4, [1.0] * 4]


def test_a_weight_from_lists_of_other_lengths_is_refused_over_files_of_a_sample(
    tmp_path: Path,
) -> None:
    files = [
        str(written(tmp_path / f"{length}.root", {"LHEScale": lists_of(*[length] * 4)}))
        for length in (9, 8)
    ]
    sample = SampleSettings(name="a", label=0, files=files, weights={"up": "weight * LHEScale[7]"})
    with pytest.raises(
        ConflictingFilesError, match=r"lists of 'up' \(weights of sample 'a'\) have 9 numbers"
    ):
        variations([sample], up="weight * LHEScale[0]")


def test_a_weight_from_lists_of_several_lengths_in_a_file_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.root", {"LHEScale": lists_of(9, 9, 8, 9)})
    with pytest.raises(WrongBranchTypeError, match="holds 8 numbers in entry 2, but 9 in others"):
        variations([stated(path)])


@pytest.mark.parametrize(
    ("message", "expected"), [("weight * LHEScale[7]", 8.0), ("LHEScale[7]", 8.0)]
)
def test_an_event_with_an_empty_list_takes_the_weight_of_the_sample(
    tmp_path: Path, message: str, expected: float
) -> None:
    scale = {"LHEScale": lists_of(0, 9, 0, 9), "genWeight": np.array([2.0, 1.0, 5.0, 1.0])}
    path = written(tmp_path / "a.root", scale)
    settings = IngestSettings(weights={"up": message})
    (info,) = checked_files(path, settings=settings, weight="genWeight")
    selection = select(info, settings)
    assert selection.table["weight_up"].to_pylist() == [2.0, expected, 5.0, expected]
    (note,) = unusual_content({"a": selection.tally().counts})
    assert note.startswith(
        "2 of 4 events of a have no 'up' of ingest.weights (no branch, or an empty list)"
    )


def test_a_sample_without_the_branch_takes_its_weight_with_a_note_and_a_count(
    tmp_path: Path,
) -> None:
    with_lists = written(tmp_path / "with.root", {"LHEScale": lists_of(9, 9, 9, 9)})
    without = written(tmp_path / "without.root", {"genWeight": np.array([2.0, 3.0, 4.0, 5.0])})
    samples = [stated(without, weight="genWeight"), stated(with_lists, label=1)]
    assert variations(samples) == [[2.0, 3.0, 4.0, 5.0], [8.0] * 4]
    settings = IngestSettings(weights={"up": "weight * LHEScale[7]"})
    infos = inventory(expand(samples), settings).infos
    notes_of_samples = [
        list(unusual_content({"a": select(info, settings).tally().counts})) for info in infos
    ]
    assert [len(actual) for actual in notes_of_samples] == [1, 0]
    assert "4 of 4 events of a have no 'up'" in notes_of_samples[0][0]


def test_a_branch_of_a_weight_that_no_file_has_is_an_error_with_the_nearest(tmp_path: Path) -> None:
    paths = [
        written(tmp_path / f"{name}.root", {"LHEScale": lists_of(9, 9, 9, 9)})
        for name in ("a", "b")
    ]
    with pytest.raises(
        MissingBranchError, match=r"lacks the branch of 'up' \(ingest.weights\).*Nearest: LHEScale"
    ):
        variations([stated(path) for path in paths], up="weight * LHEScales[7]")
    with pytest.raises(
        MissingBranchError, match=r"lacks the branch of 'up' \(weights of sample 'a'\)"
    ):
        variations([stated(paths[0], weights={"up": "LHEScales[7]"}), stated(paths[1])])


@pytest.mark.parametrize("message", ["name", "name[0]"])
@pytest.mark.parametrize("key", ["weight", "weights", "pass_through"])
def test_text_is_no_weight(key: str, message: str) -> None:
    text = ak.Array(["nominal", "up"])
    column = {"weight": "weight", "weights": "weight_up", "pass_through": "name"}[key]
    with pytest.raises(
        WrongBranchTypeError, match=r"branch 'name' holds text; a number per event is needed"
    ):
        column_numbers(text, column, ColumnSource.of_weight(message), path="a.root")


def test_the_weight_of_a_sample_is_from_lists_of_one_length_but_for_the_first(
    tmp_path: Path,
) -> None:
    nine = written(tmp_path / "nine.root", {"LHEWeight": lists_of(9, 9, 9, 9)})
    eight = written(tmp_path / "eight.root", {"LHEWeight": lists_of(8, 8, 8, 8)})
    mixed = written(tmp_path / "mixed.root", {"LHEWeight": lists_of(9, 9, 8, 9)})
    files = [str(nine), str(eight)]
    settings = IngestSettings()
    with pytest.raises(
        ConflictingFilesError, match=r"lists of 'weight' .* 9 numbers in .* and 8 in .*two samples"
    ):
        inventory(
            expand([SampleSettings(name="a", label=0, files=files, weight="LHEWeight[2]")]),
            settings,
        )
    with pytest.raises(WrongBranchTypeError, match="holds 8 numbers in entry 2, but 9 in others"):
        select(mixed, settings, weight="LHEWeight[2]")
    first = expand(
        [SampleSettings(name="a", label=0, files=[*files, str(mixed)], weight="LHEWeight[0]")]
    )
    assert [info.weight for info in inventory(first, settings).infos] == ["LHEWeight[0]"] * 3
    assert select(mixed, settings, weight="LHEWeight[0]").table["weight"].to_pylist() == [1.0] * 4
    apart = [stated(nine, weight="LHEWeight[2]"), stated(eight, weight="LHEWeight[3]")]
    assert len(inventory(expand(apart), settings).infos) == 2


def rejections(path: Path, sample: dict[str, Any], **weights: str) -> dict[str, int]:
    """How many events of a file are rejected, by the branch that is not finite."""
    settings = IngestSettings(weights=weights)
    (info,) = checked_files(path, settings=settings, **sample)
    counts = select(info, settings).tally().counts
    prefix = "not_finite "
    return {
        name.removeprefix(prefix): num for name, num in counts.items() if name.startswith(prefix)
    }


def scale_with_nan(entry: int, index: int) -> ak.Array:
    """Lists of nine numbers, one of which is NaN."""
    numbers = np.ones((4, 9), np.float32)
    numbers[entry, index] = np.nan
    return ak.Array(numbers.tolist())


def test_a_weight_that_only_some_samples_have_is_none_for_the_others(tmp_path: Path) -> None:
    nominal = np.array([1.0, np.nan, 1.0, 1.0])
    path = written(tmp_path / "a.root", {"LHEScale": scale_with_nan(0, 8), "genWeight": nominal})
    of_sample = {"weight": "genWeight", "weights": {"up": "LHEScale[8]"}}
    assert rejections(path, of_sample, up="none") == {"LHEScale[8]": 1, "genWeight": 1}
    assert rejections(path, {"weight": "genWeight"}, up="none") == {"genWeight": 1}


def test_a_weight_that_is_not_finite_is_counted_under_the_branch_of_its_sample(
    tmp_path: Path,
) -> None:
    path = written(tmp_path / "a.root", {"LHEScale": scale_with_nan(2, 6)})
    assert rejections(path, {"weights": {"up": "LHEScale[6]"}}, up="LHEScale[7]") == {
        "LHEScale[6]": 1
    }


@pytest.mark.parametrize("index", [0, 8])
def test_each_of_two_weights_from_one_branch_rejects_its_events(tmp_path: Path, index: int) -> None:
    path = written(tmp_path / "a.root", {"LHEScale": scale_with_nan(1, index)})
    weights = {"up": "weight * LHEScale[8]", "down": "weight * LHEScale[0]"}
    assert rejections(path, {}, **weights) == {f"LHEScale[{index}]": 1}


def test_two_weights_of_one_number_count_all_their_events(tmp_path: Path) -> None:
    nominal = np.array([np.inf, 1.0, 1.0, 1.0])
    path = written(tmp_path / "a.root", {"LHEScale": scale_with_nan(1, 8), "genWeight": nominal})
    weights = {"up": "weight * LHEScale[8]", "other": "LHEScale[8]"}
    assert rejections(path, {"weight": "genWeight"}, **weights) == {
        "LHEScale[8]": 2,
        "genWeight": 1,
    }
