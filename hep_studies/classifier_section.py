"""The section of the page of claims on the classifiers of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from hep_studies.tables import markdown_table
from hep_studies.verdicts import LEVEL, verdict_of
from pipeline.terminal.evaluation_tables import evaluation_tables

#: A classifier is behind the best if their difference is more than this number of errors.
_SIGNIFICANT_ERRORS: Final = 2
#: Half of the width of a 95 % interval of a normal distribution, in standard errors.
_INTERVAL_ERRORS: Final = 1.96
#: The source would see no difference between areas below ROC curves that differ by less.
_SIMILAR_AREAS: Final = 0.005


def classifier_section(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the section on the classifiers of an evaluation.

    `metrics`: the content of its `metrics.json`, which the section has too.
    """
    tables = []
    for grid in evaluation_tables(metrics):
        title = f"{grid.title[:1].upper()}{grid.title[1:]}"
        tables.append((title, markdown_table(grid.rows[0], grid.rows[1:]), grid.caption))
    return {
        **metrics,
        "errors": _SIGNIFICANT_ERRORS,
        "trees": _network_against_trees(metrics["behind_best"]),
        "calibration": _calibration_table(metrics["runs"]),
        "miscalibrated": _miscalibrated(metrics["runs"]),
        "tables": tables,
    }


def _miscalibrated(runs: Mapping[str, Any]) -> dict[str, float]:
    """Return the classifiers whose calibration test fails, each with its smallest p-value.

    The test of a class asks how often a perfect model would be as far from the observed shares. A
    classifier fails if one of its classes does, at a level that is divided by their number.
    """
    smallest_p_values = {}
    for name, run in runs.items():
        p_values = [numbers["p_value"] for numbers in run["calibration"].values()]
        if min(p_values) < LEVEL / len(p_values):
            smallest_p_values[name] = min(p_values)
    return smallest_p_values


def _calibration_table(runs: Mapping[str, Any]) -> str:
    """Return a table in Markdown of the calibration tests, a row for each classifier."""
    classes = list(next(iter(runs.values()))["calibration"])
    rows = []
    for name, run in runs.items():
        texts = [
            "{error:.4f}, perfect {expected:.4f}, p = {p_value:.2g}".format_map(numbers)
            for numbers in run["calibration"].values()
        ]
        rows.append([name, *texts])
    return markdown_table(["", *classes], rows)


def _network_against_trees(behind_best: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return by how much the area of boosted trees is larger than that of the network `hlf`.

    `behind_best`: for each classifier, by how much its area below the ROC curve is behind the best
    one (`value`), and the standard error of that (`error`). The errors are taken as independent.
    None without both classifiers.
    """
    if "hlf" not in behind_best or "boosted-trees" not in behind_best:
        return None
    network = behind_best["hlf"]
    trees = behind_best["boosted-trees"]
    difference = network["value"] - trees["value"]
    half_width = _INTERVAL_ERRORS * math.hypot(network["error"], trees["error"])
    verdict = verdict_of(difference, half_width, _SIMILAR_AREAS, is_equivalence=True)
    return {
        "difference": (difference, difference - half_width, difference + half_width),
        "similar": _SIMILAR_AREAS,
        "verdict": verdict,
    }
