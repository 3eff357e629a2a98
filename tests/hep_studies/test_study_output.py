"""The files that a study writes, and its table in the terminal."""

from __future__ import annotations

from pathlib import Path

from example_study import example_result, example_run, example_study

from hep_studies.study_output import remove_output, terminal_table

WORKERS = "train.workers"


def test_only_files_that_a_study_writes_are_removed(tmp_path: Path) -> None:
    for name in ("runs/hlf", "figures", "my-notes"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("result.json", "table.json", "page.md", "runs/hlf/a", "talk.pdf", "my-notes/a"):
        (tmp_path / name).write_text("x")

    remove_output(tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["my-notes", "talk.pdf"]


def test_the_terminal_shows_every_measure_of_the_study_but_those_over_a_key() -> None:
    tables = [
        {"title": "T", "measures": ["seconds", "diverged"]},
        {"title": "U", "measures": ["staleness"], "over": WORKERS},
    ]
    study = example_study(tables=tables, vary={WORKERS: [2]})
    runs = [example_run("sgd", 1), example_run("ar-sgd", 1, values={WORKERS: 2})]

    header, *rows = terminal_table(example_result(study, runs)).rows

    assert header == ("method", "test_accuracy", "seconds", "diverged")
    assert len(rows) == 2
