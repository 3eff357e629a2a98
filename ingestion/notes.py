"""Writes sentences about input files and events that are probably not what the user means."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from hep_core.input_errors import shortened_list
from ingestion import tally
from ingestion.errors import group_messages
from ingestion.file_info import BadFile, FileInfo, WaitingFile
from ingestion.schema import WEIGHT_PREFIX
from ingestion.settings import NO_WEIGHT, SampleSettings

#: From this number of events on, some jets have a b-tag, and some have none.
_ENOUGH_EVENTS: Final = 50
#: Share of events with an eta just below pi, if none is above, that looks like azimuths; of one
#: azimuth in an event, 3 % are so near to pi.
_LIKE_AZIMUTHS: Final = 0.01

#: Numbers of events by step of the cutflow.
Counts = Mapping[str, int]


class Problem(NamedTuple):
    """Something about events that looks wrong, in sentences."""

    text: str
    """What looks wrong."""
    config_remedy: str = ""
    """What to do by keys of the config; empty if no key helps."""

    def __str__(self) -> str:
        """Return the text and the remedy."""
        return f"{self.text} {self.config_remedy}".rstrip()


def notes(
    files: Sequence[FileInfo],
    samples: Sequence[SampleSettings],
    counters: Mapping[str, Counts] | None = None,
    unread_files: Sequence[BadFile | WaitingFile] = (),
) -> list[str]:
    """All sentences about the files and events of a run.

    Args:
        files: The files that can be read.
        samples: The samples of the config.
        counters: Numbers of events by step of the cutflow and unusual content, for each sample.
        unread_files: Files that are left out.
    """
    return [
        *_missing_weights(files),
        *_skims(files, samples),
        *_sums_with_unread_files(samples, unread_files),
        *_unclosed(files),
        *unusual_content(counters or {}),
    ]


def _missing_weights(files: Sequence[FileInfo]) -> Iterator[str]:
    """A sentence about files without event weights, unless their sample states `weight: none`.

    It names branches of the files whose names are like those of weights.
    """
    without_weights = [
        file
        for file in files
        if file.entries and "weight" in file.missing_optional and file.weight != NO_WEIGHT
    ]
    if not without_weights:
        return
    samples = _sample_names(without_weights)
    # A dictionary keeps each name once, in order.
    candidates = dict.fromkeys(name for file in without_weights for name in file.like_weights)
    if candidates:
        branches = list(candidates)
        yield (
            f"The files of {samples} have no branch of the usual weight: every event has weight 1. "
            f"Branches named like weights: {shortened_list(branches)}. State one under each of "
            f"these samples (`weight: {branches[0]}`), or `weight: none`."
        )
    else:
        yield (
            f"The files of {samples} have no event weights: every event has weight 1 (`weight: "
            f"none` states it)."
        )


def _skims(files: Sequence[FileInfo], samples: Sequence[SampleSettings]) -> Iterator[str]:
    """Sentences about samples that may hold only a part of the generated events (skims).

    Only samples with a cross-section and without `sum_of_weights` matter: their events get the
    whole cross-section, which is too much for a skim. There is a sentence for each sample with a
    sign of a skim, and one for all samples whose files show nothing.
    """
    needs_sum = {
        sample.name
        for sample in samples
        if sample.cross_section_pb is not None and sample.sum_of_weights is None
    }
    # A sign is a clause; empty if the file holds all generated events, None if it is unknown.
    signs_by_sample: dict[str, list[str | None]] = {}
    for file in files:
        if file.sample in needs_sum:
            signs_by_sample.setdefault(file.sample, []).append(file.skim)
    unknown = []
    for name, file_signs in signs_by_sample.items():
        signs = [sign for sign in file_signs if sign]
        if signs:
            share = ""
            if len(file_signs) > 1:
                share = f"; so in {len(signs)} of {len(file_signs)} files"
            yield (
                f"Sample '{name}' looks like a skim: {signs[0]}{share}. Its whole cross-section "
                f"goes to the events read. State the sum of weights of all generated events: "
                f"`sum_of_weights:` a number, or a branch or bin in the files (Runs.genEventSumw, "
                f"CountWeighted[1])."
            )
        elif None in file_signs:
            unknown.append(name)
    if unknown:
        yield (
            f"Nothing in the files of {', '.join(unknown)} shows whether they hold all generated "
            f"events; the whole cross-section goes to the events read. Of a skim, state "
            f"`sum_of_weights`."
        )


def _sums_with_unread_files(
    samples: Sequence[SampleSettings], unread_files: Sequence[BadFile | WaitingFile]
) -> Iterator[str]:
    """A sentence about sums of weights that also count the events of files that are left out.

    Only sums that the config states as a number are concerned, not those read from the files.
    """
    with_number = {sample.name for sample in samples if isinstance(sample.sum_of_weights, float)}
    affected = [file for file in unread_files if file.sample in with_number]
    if affected:
        yield (
            f"sum_of_weights of {_sample_names(affected)} is a number for all files, and "
            f"{len(affected)} of them are left out: weights and rates come out too small. State a "
            f"branch of the files, or correct the number."
        )


def _sample_names(files: Iterable[FileInfo | BadFile | WaitingFile]) -> str:
    return ", ".join(dict.fromkeys(file.sample for file in files))


def _unclosed(files: Sequence[FileInfo]) -> list[str]:
    """Sentences about files whose job ended before it closed them."""
    messages = []
    for file in files:
        if file.is_unclosed:
            message = (
                f"{file.path} was never closed: the job that wrote it ended before. Its "
                f"{file.entries} entries up to the last save are read."
            )
            messages.append((file.path, message))
    return group_messages(messages)


def unusual_content(samples: Mapping[str, Counts]) -> Iterator[str]:
    """Sentences about events without a class, or whose units, charges or b-tags look wrong.

    They advise keys of the config. `samples` has the counters of each sample.
    """
    for problem in problems_of_content(samples):
        yield str(problem)


def problems_of_content(samples: Mapping[str, Counts]) -> Iterator[Problem]:
    """Problems of events without a class, or whose units, charges or b-tags look wrong.

    `samples` has the counters of each sample.
    """
    for name, counts in samples.items():
        yield from _unusual_events(name, counts)
    without_tags = [name for name, counts in samples.items() if _lacks(counts, tally.TAGGED_JETS)]
    if without_tags:
        yield Problem(
            f"No jet of {', '.join(without_tags)} has a b-tag.",
            "Map another branch as `jets.btag` in ingest.branch_map, lower ingest.min_btag of a "
            "discriminant, or do not train on num_bjets.",
        )
    only_tags = [name for name, counts in samples.items() if _lacks(counts, tally.UNTAGGED_JETS)]
    if only_tags:
        yield Problem(
            f"Each jet of {', '.join(only_tags)} has a b-tag.",
            "Map another branch as `jets.btag` in ingest.branch_map, or set ingest.min_btag of a "
            "discriminant.",
        )
    with_charges = [name for name, counts in samples.items() if counts.get(tally.OTHER_CHARGES)]
    if with_charges:
        yield Problem(
            f"Leptons or tracks of {', '.join(with_charges)} have charges other than -1 and 1, in "
            f"units of e.",
            "Map the signed charge as `electrons.charge` (muons, tracks) in ingest.branch_map.",
        )


def _lacks(counts: Counts, counter: str) -> bool:
    """Whether none of many events has tagged (or untagged) jets, but some have the opposite.

    `counter` is the tally's counter of the events with tagged, or with untagged, jets.
    """
    opposite = {
        tally.TAGGED_JETS: tally.UNTAGGED_JETS,
        tally.UNTAGGED_JETS: tally.TAGGED_JETS,
    }[counter]
    # An older ingest did not count these events; there is no sentence then.
    return _has_many_events(counts) and counts.get(counter, 1) == 0 and counts.get(opposite, 1) > 0


def _unusual_events(name: str, counts: Counts) -> Iterator[Problem]:
    """Problems of the events of one sample, from its counters."""
    # Events of no class, without a weight, and with numbers that are not finite are certain; large
    # momenta and swapped angles are guesses from the distributions.
    if num_without_class := counts.get(tally.NO_CLASS):
        yield Problem(
            f"{num_without_class} events of {name} are of no class (`null` in label_by) and are "
            f"left out."
        )
    for column, num_events in _with_prefix(counts, tally.WITHOUT_WEIGHT).items():
        yield Problem(
            f"{num_events} of {counts['events']} events of {name} have no "
            f"'{column.removeprefix(WEIGHT_PREFIX)}' of ingest.weights (no branch, or an empty "
            f"list): they take the weight of the sample, a factor of 1."
        )
    if not_finite := _with_prefix(counts, tally.NOT_FINITE):
        branches = [f"{branch} of {num_events}" for branch, num_events in not_finite.items()]
        yield Problem(
            f"{counts['rejected_nonfinite']} events of {name} rejected: {', '.join(branches)} not "
            f"finite.",
            "If lists are padded with NaN, set the counts (such as `jets.count`) in "
            "ingest.branch_map.",
        )
    any_momenta = _with_prefix(counts, tally.ANY_MOMENTA)
    large_momenta = _with_prefix(counts, tally.LARGE_MOMENTA)
    # Momenta are suspicious if they are large in more than half of the events that have any.
    large = [key for key, num_events in large_momenta.items() if 2 * num_events > any_momenta[key]]
    if large:
        yield Problem(
            f"Momenta of {', '.join(large)} of {name} are very large: are they in MeV? GeV is "
            f"needed."
        )
    if _has_many_events(counts):
        limit = _LIKE_AZIMUTHS * counts["events"]
        like_azimuths = _with_prefix(counts, tally.LIKE_AZIMUTHS)
        swapped = [key for key, num_events in like_azimuths.items() if num_events > limit]
        if swapped:
            yield Problem(
                f"No eta of {', '.join(swapped)} of {name} is beyond pi, but many are just below: "
                f"are eta and phi swapped?",
                f"Map their branches as `{swapped[0]}.eta` and `{swapped[0]}.phi` in "
                f"ingest.branch_map.",
            )


def _has_many_events(counts: Counts) -> bool:
    return counts["events"] >= _ENOUGH_EVENTS


def _with_prefix(counts: Counts, prefix: str) -> dict[str, int]:
    """The counters with a prefix, by the rest of their names."""
    return {
        key.removeprefix(prefix): count for key, count in counts.items() if key.startswith(prefix)
    }
