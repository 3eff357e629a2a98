"""What `evaluate-files` makes of its inputs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from delphes_files import write_delphes
from event_rows import distinct, event_row, lepton, track
from feature_datasets import write_dataset
from minimal_configs import MINIMAL
from rich.console import Console
from stages_in_process import without_spark
from trained_nights import TrainedNights

from models.evaluation.bootstrap import Estimate
from models.evaluation.evaluation_task import EvaluationTask
from models.evaluation.rates import Rates
from pipeline.commands.evaluate_files import (
    _Events,
    _new_events,
    _notes_about_rates,
    _reference,
    _samples,
    evaluate_files,
)
from pipeline.config import Config
from pipeline.errors import ConfigError
from pipeline.run_folder import RunFolder


def test_leptons_that_lack_their_tracks_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_spark(monkeypatch, tmp_path)
    rows = [
        event_row(electrons=[lepton(40.0, 0.5, 0.1)], tracks=[track(40.0, 0.5, 0.1 + shift)])
        for shift in (0.0, 2e-4, 2e-4)
    ]
    path = write_delphes(tmp_path / "new.root", distinct(rows))
    output = StringIO()
    config = Config.model_validate(
        {**MINIMAL, "run_dir": str(tmp_path), "features": {"particles": False}}
    )
    _new_events(RunFolder(config, Console(file=output, width=1000)), [f"QCD={path}"], tmp_path)
    assert (
        "note: In 2 of 3 events of 'new-1' no track is within features.own_track_dr"
        in output.getvalue()
    )


class Evaluation(NamedTuple):
    """What would be evaluated."""

    task: EvaluationTask
    test: Sequence[Path]
    train: Sequence[Path]


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> list[Evaluation]:
    evaluations: list[Evaluation] = []

    def noted(
        _config: Any, _console: Any, _candidates: Any, task: Any, test: Any, *_: Any, **options: Any
    ) -> Any:
        evaluations.append(Evaluation(task, test, options["train"]))
        return {"runs": {}}

    monkeypatch.setattr("pipeline.commands.evaluate_files.kernel_items", lambda _: {})
    monkeypatch.setattr("pipeline.commands.evaluate_files.evaluate_models", noted)
    return evaluations


def test_slices_of_a_class_counted_by_their_numbers_of_events_of_the_test_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evaluations: list[Evaluation]
) -> None:
    """The stage `evaluate` weights them by the rates of their samples."""
    nights = TrainedNights(tmp_path)
    nights.train(1)
    rates = Rates({"qcd": Estimate(1.0, 0.0)}, {"qcd": 0})
    monkeypatch.setattr(
        "pipeline.commands.evaluate_files.rates_of_run", lambda *_: rates, raising=False
    )
    evaluate_files(nights.run_folder, [], [], None)
    assert [evaluation.task.rates for evaluation in evaluations] == [rates]
    # The curve of over-training compares these with the training split.
    (evaluation,) = evaluations
    assert [list(files) for files in evaluation[1:]] == [
        nights.dataset.files(split) for split in ("test", "train")
    ]


def test_without_its_events_the_test_split_was_refused(
    tmp_path: Path, evaluations: list[Evaluation]
) -> None:
    """They only say how much each sample counts."""
    nights = TrainedNights(tmp_path)
    nights.train(1)
    output = StringIO()
    run_folder = RunFolder(nights.run_folder.config, Console(file=output, width=1000))
    shutil.rmtree(run_folder.store("ingest").folder)
    evaluate_files(run_folder, [], [], None)
    assert [evaluation.task.rates for evaluation in evaluations] == [None]
    assert "no rates: " in output.getvalue()


@pytest.mark.parametrize(
    ("num_seen", "reference", "message"),
    [
        (0, True, ""),
        (3, True, "no boosted trees: the training and validation splits hold 3 of these events"),
        (
            None,
            True,
            "no boosted trees: the training and validation splits may hold copies of these events",
        ),
        (0, False, ""),
    ],
)
def test_boosted_trees_are_the_reference_only_for_events_that_they_have_not_seen(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_seen: int | None,
    reference: bool,
    message: str,
) -> None:
    dataset = write_dataset(tmp_path / "set", rows={"train": [4], "val": [5], "test": [6]})
    asked: list[Any] = []

    def noted(of_dataset: Any, events: Any, _keys: Any) -> int | None:
        asked.append((of_dataset, len(events)))
        return num_seen

    monkeypatch.setattr("pipeline.commands.evaluate_files.count_seen", noted)
    output = StringIO()
    config = Config.model_validate(
        {**MINIMAL, "run_dir": str(tmp_path), "evaluate": {"reference": reference}}
    )
    run_folder = RunFolder(config, Console(file=output, width=1000))
    events = _Events("new", dataset.files("test"))
    used = _reference(run_folder, dataset, events)
    assert (used is dataset) == (num_seen == 0 and reference)
    assert output.getvalue().strip() == message
    assert asked == ([(dataset, 6)] if reference else [])
    assert _reference(run_folder, None, events) is None


def test_inputs_are_files_of_a_class_or_a_sample() -> None:
    config = Config.model_validate({**MINIMAL, "classes": ["QCD", "ttbar", "W/Z"]})
    samples = _samples(["W/Z=data/run=3/w.root", "qcd=/data/run=3/q.root"], config)
    assert [(sample.label, sample.files) for sample in samples] == [
        (2, ["data/run=3/w.root"]),
        (0, ["/data/run=3/q.root"]),
    ]
    for message in ("/data/run=3/new.root", "run=3/new.root", "date=*/*.root", "new.root"):
        with pytest.raises(ConfigError, match=r"there is no sample '.*predict"):
            _samples([message], config)


def test_new_files_count_by_their_own_sum_of_weights_and_never_by_a_number_of_others() -> None:
    of_slices = [
        {
            "name": "low",
            "label": 0,
            "files": ["a"],
            "weight": "genWeight",
            "sum_of_weights": "Runs.genEventSumw",
        },
        {
            "name": "high",
            "label": 0,
            "files": ["b"],
            "weight": "LHEWeight[1]",
            "sum_of_weights": 500,
        },
        {"name": "ttbar", "label": 1, "files": ["c"], "weight": "none", "sum_of_weights": 70.5},
        {"name": "W", "label": 2, "files": ["d"], "weight": "genWeight"},
    ]
    samples = [{**slice_sample, "cross_section_pb": 10.0} for slice_sample in of_slices]
    config = Config.model_validate({**MINIMAL, "samples": samples})
    results = _samples(["low=x", "high=y", "ttbar=z"], config)
    assert [
        (result.name, result.weight, result.sum_of_weights, result.cross_section_pb)
        for result in results
    ] == [
        ("low", "genWeight", "Runs.genEventSumw", 10.0),
        ("new-2", "LHEWeight[1]", None, None),
        ("new-3", "none", None, None),
    ]
    assert any(
        "sum_of_weights of high, ttbar is a number of other files" in note
        for note in _notes_about_rates(config.model_copy(update={"samples": results}), config)
    )
    with pytest.raises(ConfigError, match="no class of one sample"):
        _samples(["QCD=x"], config)
