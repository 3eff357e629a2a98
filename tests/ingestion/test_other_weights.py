"""Varied weights of the generator, from lists of different lengths."""

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


def write_weights(path: Path, **branches: Any) -> Path:
    """Write four events, unlike those of other files, with these branches of weights alone."""
    first = sum(map(ord, path.stem))
    rows = [event_row(electrons=[lepton(40.0 + first + index, 0, 0)]) for index in range(4)]
    return write_delphes(path, distinct(rows), without=["Event.Weight"], more=branches)


def lists_of(*lengths: int) -> ak.Array:
    """Lists of these lengths, event by event, with 1 to 9."""
    lists = [list(range(1, length + 1)) for length in lengths]
    return ak.values_astype(ak.Array(lists), np.float32)


#: Lists with a number of each of nine scales in every event, and lists of eight.
NINE = lists_of(9, 9, 9, 9)
EIGHT = lists_of(8, 8, 8, 8)


def sample_of(path: Path, label: int = 0, **settings: Any) -> SampleSettings:
    """A sample of one file, named as the file."""
    return SampleSettings(name=path.stem, label=label, files=[str(path)], **settings)


def variations(samples: list[SampleSettings], **weights: str) -> list[list[float]]:
    """The column `weight_up` of the files of some samples."""
    settings = IngestSettings(weights={"up": "weight * LHEScale[7]", **weights})
    infos = inventory(expand(samples), settings).infos
    return [select(info, settings).table["weight_up"].to_pylist() for info in infos]


def test_a_weight_from_lists_of_other_lengths_is_refused_over_samples(tmp_path: Path) -> None:
    nine = write_weights(tmp_path / "nine.root", LHEScale=NINE)
    eight = write_weights(tmp_path / "eight.root", LHEScale=EIGHT)

    message = (
        r"lists of 'up' \(ingest.weights\) have 9 numbers in sample 'nine': .*, "
        r"and 8 in sample 'eight'.*`weights: "
    )
    with pytest.raises(ConflictingFilesError, match=message):
        variations([sample_of(nine), sample_of(eight)])
    stated = sample_of(eight, weights={"up": "weight * LHEScale[6]"})
    assert variations([sample_of(nine), stated]) == [[8.0] * 4, [7.0] * 4]
    unvaried = sample_of(eight, weights={"up": "none"})
    assert variations([sample_of(nine), unvaried]) == [[8.0] * 4, [1.0] * 4]


def test_a_weight_from_lists_of_other_lengths_is_refused_over_files_of_a_sample(
    tmp_path: Path,
) -> None:
    nine = write_weights(tmp_path / "nine.root", LHEScale=NINE)
    eight = write_weights(tmp_path / "eight.root", LHEScale=EIGHT)
    files = [str(nine), str(eight)]
    sample = SampleSettings(name="a", label=0, files=files, weights={"up": "weight * LHEScale[7]"})

    with pytest.raises(
        ConflictingFilesError, match=r"lists of 'up' \(weights of sample 'a'\) have 9 numbers"
    ):
        variations([sample], up="weight * LHEScale[0]")


def test_a_weight_from_lists_of_several_lengths_in_a_file_is_refused(tmp_path: Path) -> None:
    path = write_weights(tmp_path / "a.root", LHEScale=lists_of(9, 9, 8, 9))

    with pytest.raises(WrongBranchTypeError, match="holds 8 numbers in entry 2, but 9 in others"):
        variations([sample_of(path)])


@pytest.mark.parametrize("expression", ["weight * LHEScale[7]", "LHEScale[7]"])
def test_an_event_with_an_empty_list_has_the_weight_of_the_sample(
    tmp_path: Path, expression: str
) -> None:
    weights = np.array([2.0, 1.0, 5.0, 1.0])
    path = write_weights(tmp_path / "a.root", LHEScale=lists_of(0, 9, 0, 9), genWeight=weights)
    settings = IngestSettings(weights={"up": expression})
    (info,) = checked_files(path, settings=settings, weight="genWeight")

    selection = select(info, settings)

    assert selection.table["weight_up"].to_pylist() == [2.0, 8.0, 5.0, 8.0]
    (note,) = unusual_content({"a": selection.tally().counts})
    assert note.startswith(
        "2 of 4 events of a have no 'up' of ingest.weights (no branch, or an empty list)"
    )


def test_a_sample_without_the_branch_has_its_weight_with_a_note_and_a_count(
    tmp_path: Path,
) -> None:
    with_lists = write_weights(tmp_path / "with.root", LHEScale=NINE)
    without = write_weights(tmp_path / "without.root", genWeight=np.array([2.0, 3.0, 4.0, 5.0]))
    samples = [sample_of(without, weight="genWeight"), sample_of(with_lists, label=1)]
    settings = IngestSettings(weights={"up": "weight * LHEScale[7]"})

    assert variations(samples) == [[2.0, 3.0, 4.0, 5.0], [8.0] * 4]

    first, second = inventory(expand(samples), settings).infos
    (note,) = unusual_content({"a": select(first, settings).tally().counts})
    assert "4 of 4 events of a have no 'up'" in note
    assert list(unusual_content({"a": select(second, settings).tally().counts})) == []


def test_a_branch_of_a_weight_that_no_file_has_is_an_error_with_the_nearest(tmp_path: Path) -> None:
    first = write_weights(tmp_path / "a.root", LHEScale=NINE)
    second = write_weights(tmp_path / "b.root", LHEScale=NINE)

    with pytest.raises(
        MissingBranchError, match=r"lacks the branch of 'up' \(ingest.weights\).*Nearest: LHEScale"
    ):
        variations([sample_of(first), sample_of(second)], up="weight * LHEScales[7]")
    misspelled = sample_of(first, weights={"up": "LHEScales[7]"})
    with pytest.raises(
        MissingBranchError, match=r"lacks the branch of 'up' \(weights of sample 'a'\)"
    ):
        variations([misspelled, sample_of(second)])


@pytest.mark.parametrize("expression", ["name", "name[0]"])
@pytest.mark.parametrize("column", ["weight", "weight_up", "name"])
def test_text_is_no_weight(column: str, expression: str) -> None:
    text = ak.Array(["nominal", "up"])

    with pytest.raises(
        WrongBranchTypeError, match=r"branch 'name' holds text; a number per event is needed"
    ):
        column_numbers(text, column, ColumnSource.of_weight(expression), path="a.root")


def test_the_weight_of_a_sample_is_from_lists_of_one_length_but_for_the_first(
    tmp_path: Path,
) -> None:
    nine = write_weights(tmp_path / "nine.root", LHEWeight=NINE)
    eight = write_weights(tmp_path / "eight.root", LHEWeight=EIGHT)
    mixed = write_weights(tmp_path / "mixed.root", LHEWeight=lists_of(9, 9, 8, 9))
    settings = IngestSettings()

    def weights_of(paths: list[Path], weight: str) -> list[str]:
        files = [str(path) for path in paths]
        sample = SampleSettings(name="a", label=0, files=files, weight=weight)
        return [info.weight for info in inventory(expand([sample]), settings).infos]

    with pytest.raises(
        ConflictingFilesError, match=r"lists of 'weight' .* 9 numbers in .* and 8 in .*two samples"
    ):
        weights_of([nine, eight], "LHEWeight[2]")
    with pytest.raises(WrongBranchTypeError, match="holds 8 numbers in entry 2, but 9 in others"):
        select(mixed, settings, weight="LHEWeight[2]")
    assert weights_of([nine, eight, mixed], "LHEWeight[0]") == ["LHEWeight[0]"] * 3
    assert select(mixed, settings, weight="LHEWeight[0]").table["weight"].to_pylist() == [1.0] * 4
    two_samples = [sample_of(nine, weight="LHEWeight[2]"), sample_of(eight, weight="LHEWeight[3]")]
    assert len(inventory(expand(two_samples), settings).infos) == 2


def rejections(path: Path, sample: dict[str, Any], **weights: str) -> dict[str, int]:
    """Number of rejected events of a file, by the branch that is not finite."""
    settings = IngestSettings(weights=weights)
    (info,) = checked_files(path, settings=settings, **sample)
    counts = select(info, settings).tally().counts
    rejected = {}
    for name, count in counts.items():
        if name.startswith("not_finite "):
            rejected[name.removeprefix("not_finite ")] = count
    return rejected


def scale_with_nan(entry: int, index: int) -> ak.Array:
    """Lists of nine numbers, one of which is NaN."""
    numbers = np.ones((4, 9), np.float32)
    numbers[entry, index] = np.nan
    return ak.Array(numbers.tolist())


def test_a_weight_that_only_some_samples_have_is_none_for_the_others(tmp_path: Path) -> None:
    weights = np.array([1.0, np.nan, 1.0, 1.0])
    path = write_weights(tmp_path / "a.root", LHEScale=scale_with_nan(0, 8), genWeight=weights)
    varied = {"weight": "genWeight", "weights": {"up": "LHEScale[8]"}}

    assert rejections(path, varied, up="none") == {"LHEScale[8]": 1, "genWeight": 1}
    assert rejections(path, {"weight": "genWeight"}, up="none") == {"genWeight": 1}


def test_a_weight_that_is_not_finite_is_counted_under_the_branch_of_its_sample(
    tmp_path: Path,
) -> None:
    path = write_weights(tmp_path / "a.root", LHEScale=scale_with_nan(2, 6))
    sample = {"weights": {"up": "LHEScale[6]"}}

    assert rejections(path, sample, up="LHEScale[7]") == {"LHEScale[6]": 1}


@pytest.mark.parametrize("index", [0, 8])
def test_each_of_two_weights_from_one_branch_rejects_its_events(tmp_path: Path, index: int) -> None:
    path = write_weights(tmp_path / "a.root", LHEScale=scale_with_nan(1, index))
    weights = {"up": "weight * LHEScale[8]", "down": "weight * LHEScale[0]"}

    assert rejections(path, {}, **weights) == {f"LHEScale[{index}]": 1}


def test_two_weights_of_one_number_count_all_their_events(tmp_path: Path) -> None:
    nominal = np.array([np.inf, 1.0, 1.0, 1.0])
    path = write_weights(tmp_path / "a.root", LHEScale=scale_with_nan(1, 8), genWeight=nominal)
    weights = {"up": "weight * LHEScale[8]", "other": "LHEScale[8]"}

    counts = rejections(path, {"weight": "genWeight"}, **weights)

    assert counts == {"LHEScale[8]": 2, "genWeight": 1}
