"""The cutflow of a run: how many events of each sample are left after each step, from the stages' counters."""

from __future__ import annotations

from typing import Any, NamedTuple


class CutflowRow(NamedTuple):
    """One step; `counts` by sample, in the order of the samples."""

    step: str
    counts: list[int]
    shares: list[float]
    """Of the first row's counts."""


def cutflow(
    samples: list[str],
    ingested: dict[str, dict[str, int]],
    selected: dict[str, dict[str, int]],
    config: dict[str, Any],
) -> list[CutflowRow]:
    """Rows from `in the files` to `selected`.

    Args:
        samples: Names, in column order.
        ingested: Counters of ingest, by sample.
        selected: Counters of features, by sample.
        config: The resolved config, for the thresholds in the words.

    Examples:
        >>> ingest = {"a": {"entries": 4, "rejected_nonfinite": 1, "rejected_no_lepton": 1, "events": 2}}
        >>> chosen = {"a": {"selected": 1, "rejected_no_isolated_lepton": 1, "rejected_nonfinite_features": 0}}
        >>> config = {"ingest": {"min_lepton_pt": 23}, "features": {"min_lepton_pt": 23, "max_lepton_isolation": 0.45}}
        >>> [row.counts for row in cutflow(["a"], ingest, chosen, config)]
        [[4], [3], [2], [1], [1]]
    """
    loose, tight = config["ingest"]["min_lepton_pt"], config["features"]
    steps: list[tuple[str, list[int]]] = [
        ("in the files", [ingested[name]["entries"] for name in samples]),
        (
            "all kinematics finite",
            [ingested[name]["entries"] - ingested[name]["rejected_nonfinite"] for name in samples],
        ),
        (f"an e or mu with pT > {loose:g} GeV", [ingested[name]["events"] for name in samples]),
        (
            f"... with pT > {tight['min_lepton_pt']:g} GeV, isolation < {tight['max_lepton_isolation']:g}",
            [selected[name]["selected"] + selected[name]["rejected_nonfinite_features"] for name in samples],
        ),
        ("all features finite: selected", [selected[name]["selected"] for name in samples]),
    ]
    first = steps[0][1]
    return [
        CutflowRow(step, counts, [count / max(total, 1) for count, total in zip(counts, first, strict=True)])
        for step, counts in steps
    ]
