"""Sentences about input files and events that are probably not what the user means; they are read nevertheless."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from hep_core.input_errors import shortened_list
from ingestion import tally
from ingestion.errors import group_messages
from ingestion.schema import WEIGHT_PREFIX
from ingestion.settings import NO_WEIGHT

#: In as many events some jets have a b-tag, and some have none.
_ENOUGH_EVENTS: Final = 50
#: Share of them with an eta just below pi, if none is above; of one azimuth in an event, 3 % are so near to pi.
_LIKE_AZIMUTHS: Final = 0.01
#: Counters of an older ingest, which had fewer.
_USUAL: Final = {tally.TAGGED_JETS: 1, tally.UNTAGGED_JETS: 1, tally.OTHER_CHARGES: 0}
#: Sentences about samples, each with what is unusual of their counters.
_UNUSUAL: Final[dict[str, Callable[[Mapping[str, int]], bool]]] = {
    "No jet of {} has a b-tag. Map another branch as `jets.btag` in ingest.branch_map, lower ingest.min_btag of a "
    "discriminant, or do not train on num_bjets.": lambda counts: (
        _are_many(counts) and counts[tally.UNTAGGED_JETS] > 0 == counts[tally.TAGGED_JETS]
    ),
    "Each jet of {} has a b-tag. Map another branch as `jets.btag` in ingest.branch_map, or set ingest.min_btag of a "
    "discriminant.": lambda counts: (
        _are_many(counts) and counts[tally.TAGGED_JETS] > 0 == counts[tally.UNTAGGED_JETS]
    ),
    "Leptons or tracks of {} have charges other than -1 and 1. Map the signed charge in units of e as "
    "`electrons.charge` (muons, tracks) in ingest.branch_map.": lambda counts: (
        counts[tally.OTHER_CHARGES] > 0
    ),
}
Rows = Sequence[Mapping[str, Any]]


def notes(
    files: Rows,
    samples: Rows,
    counters: Mapping[str, Mapping[str, int]] | None = None,
    left_out: Rows = (),
) -> list[str]:
    """All sentences."""
    return [
        *_missing_weights(files),
        *_skims(files, samples),
        *_numbers_of_other_files(samples, left_out),
        *_unclosed(files),
        *unusual_content(counters or {}),
    ]


def _missing_weights(files: Rows) -> Iterator[str]:
    lacking = [file for file in files if file["entries"] and "weight" in file["missing_optional"]]
    lacking = [file for file in lacking if file.get("weight") != NO_WEIGHT]
    named = list(dict.fromkeys(name for file in lacking for name in file.get("like_weights", ())))
    if named:
        yield (
            f"The files of {_samples(lacking)} have no branch of the usual weight: every event has weight 1. "
            f"Branches named like weights: {shortened_list(named)}. State one under each of these samples "
            f"(`weight: {named[0]}`), or `weight: none`."
        )
    elif lacking:
        yield (
            f"The files of {_samples(lacking)} have no event weights: every event has weight 1 (`weight: none` states "
            f"it)."
        )


def _skims(files: Rows, samples: Rows) -> Iterator[str]:
    """Sentences about samples of known cross-section that hold, or may hold, a part of the generated events."""
    asked = {
        each["name"]
        for each in samples
        if each["cross_section_pb"] is not None and each.get("sum_of_weights") is None
    }
    unknown = []
    for name in dict.fromkeys(file["sample"] for file in files if file["sample"] in asked):
        found = [file.get("skim", "") for file in files if file["sample"] == name]
        if signs := list(filter(None, found)):
            files_of = f"; so in {len(signs)} of {len(found)} files" if len(found) > 1 else ""
            yield (
                f"Sample '{name}' looks like a skim: {signs[0]}{files_of}. Its whole cross-section goes to the events "
                f"read. State the sum of weights of all generated events: `sum_of_weights:` a number, or a branch or "
                f"bin in the files (Runs.genEventSumw, CountWeighted[1])."
            )
        elif None in found:
            unknown.append(name)
    if unknown:
        yield (
            f"Nothing in the files of {', '.join(unknown)} shows whether they hold all generated events; the whole "
            f"cross-section goes to the events read. Of a skim, state `sum_of_weights`."
        )


def _numbers_of_other_files(samples: Rows, left_out: Rows) -> Iterator[str]:
    stated = {each["name"] for each in samples if isinstance(each.get("sum_of_weights"), float)}
    if affected := [file for file in left_out if file["sample"] in stated]:
        yield (
            f"sum_of_weights of {_samples(affected)} is a number for all files, and {len(affected)} of them are left "
            f"out: weights and rates come out too small. State a branch of the files, or correct the number."
        )


def _samples(files: Rows) -> str:
    return ", ".join(dict.fromkeys(file["sample"] for file in files))


def _unclosed(files: Rows) -> list[str]:
    words = "was never closed: the job that wrote it ended before. Its {} entries up to the last save are read."
    unclosed = [file for file in files if file.get("is_unclosed")]
    return group_messages(
        (file["path"], f"{file['path']} {words.format(file['entries'])}") for file in unclosed
    )


def unusual_content(samples: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """Sentences about events without a class, or with units, padding, charges or b-tags that look wrong."""
    for name, counts in samples.items():
        if left_out := counts.get(tally.NO_CLASS):
            yield f"{left_out} events of {name} are of no class (`null` in label_by) and are left out."
        for weight, number in _of_kind(counts, tally.WITHOUT_WEIGHT).items():
            yield (
                f"{number} of {counts['events']} events of {name} have no '{weight.removeprefix(WEIGHT_PREFIX)}' of "
                f"ingest.weights (no branch, or an empty list): they take the weight of the sample, a factor of 1."
            )
        if bad := _of_kind(counts, tally.NOT_FINITE):
            branches = ", ".join(f"{branch} of {number}" for branch, number in bad.items())
            yield (
                f"{counts['rejected_nonfinite']} events of {name} rejected: {branches} not finite. If lists are padded "
                f"with NaN, set the counts (such as `jets.count`) in ingest.branch_map."
            )
        any_momenta = _of_kind(counts, tally.ANY_MOMENTA)
        large = [
            key
            for key, each in _of_kind(counts, tally.LARGE_MOMENTA).items()
            if 2 * each > any_momenta[key]
        ]
        if large:
            yield f"Momenta of {', '.join(large)} of {name} are very large: are they in MeV? GeV is needed."
        like_azimuths = _of_kind(counts, tally.LIKE_AZIMUTHS) if _are_many(counts) else {}
        swapped = [
            key for key, each in like_azimuths.items() if each > _LIKE_AZIMUTHS * counts["events"]
        ]
        if swapped:
            yield (
                f"No eta of {', '.join(swapped)} of {name} is beyond pi, but many are just below: are eta and phi "
                f"swapped? Map their branches as `{swapped[0]}.eta` and `{swapped[0]}.phi` in ingest.branch_map."
            )
    for words, is_unusual in _UNUSUAL.items():
        if names := [name for name, each in samples.items() if is_unusual({**_USUAL, **each})]:
            yield words.format(", ".join(names))


def _are_many(counts: Mapping[str, int]) -> bool:
    return counts["events"] >= _ENOUGH_EVENTS


def _of_kind(counts: Mapping[str, int], begin: str) -> dict[str, int]:
    return {key.removeprefix(begin): each for key, each in counts.items() if key.startswith(begin)}
