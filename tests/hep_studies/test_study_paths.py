"""The paths of the parts of a study are those of its file."""

from __future__ import annotations

from example_study import EQUAL_ACCURACY, example_study

from hep_studies.study_paths import controls_with_paths, panels_with_paths, rows_with_paths

CLAIM = {"says": "x", "better": "ad-psgd", **EQUAL_ACCURACY}


def test_several_controls_have_numbers_and_a_single_one_has_none() -> None:
    claims = [{**CLAIM, "control": "sgd"}, {**CLAIM, "control": ["sgd", "ar-sgd"]}]
    single, several = example_study(claims=claims).claims

    assert list(controls_with_paths("claims.0", single)) == [
        ("claims.0.control", {"method": "sgd"})
    ]
    assert list(controls_with_paths("claims.1", several)) == [
        ("claims.1.control.0", {"method": "sgd"}),
        ("claims.1.control.1", {"method": "ar-sgd"}),
    ]


def test_the_rows_of_also_begin_behind_the_claim() -> None:
    also = [{"measure": "val_loss"}, {"measure": "seconds"}]
    (claim,) = example_study(claims=[{**CLAIM, "control": "sgd", "also": also}]).claims

    measures = {path: row.measure for path, row in rows_with_paths("claims.0", claim)}

    assert measures == {
        "claims.0": "test_accuracy",
        "claims.0.also.0": "val_loss",
        "claims.0.also.1": "seconds",
    }


def test_panels_are_numbered_within_their_figure() -> None:
    panels = [{"y": "val_loss", "x": "epoch"}, {"y": "val_accuracy", "x": "epoch"}]
    figures = [{"name": name, "title": name, "panels": panels} for name in ("first", "second")]

    paths = [path for path, _ in panels_with_paths(example_study(figures=figures).figures)]

    assert paths == [
        "figures.0.panels.0",
        "figures.0.panels.1",
        "figures.1.panels.0",
        "figures.1.panels.1",
    ]
