"""The samples, rates and reference of `evaluate-files`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from command_line import SAMPLES
from delphes_files import PARTICLE_BRANCHES, write_delphes
from event_rows import distinct, event_row, lepton, track
from feature_datasets import write_dataset
from minimal_configs import MINIMAL
from networks import small_network, small_spec
from published_by_hand import record_as_written
from rich.console import Console
from stages_in_process import without_spark
from trained_nights import TrainedNights

from ingestion.errors import ConflictingFilesError
from models.errors import ModelError, PluginCodeError
from models.evaluation.bootstrap import Estimate
from models.evaluation.evaluation_task import EvaluationTask
from models.evaluation.rates import Rates
from models.prediction import Candidate
from models.saved_model import save_model
from pipeline.commands.evaluate_files import _dataset, _models, _reference, evaluate_files
from pipeline.commands.new_events import EvaluatedEvents, _notes_about_rates, _samples, new_events
from pipeline.config import Config
from pipeline.errors import ConfigError, MissingInputError
from pipeline.run_folder import RunFolder
from pipeline.runs.own_folders import is_claimed
from pipeline.runs.trained_models import FoundModel
from pipeline.runs.version import Version
from pipeline.stages.evaluation_task import SelectionRates


def run_folder_with_output(folder: Path, **settings: Any) -> tuple[RunFolder, StringIO]:
    """A run folder of a minimal config, and the output of its commands."""
    config = Config.model_validate({**MINIMAL, "run_dir": str(folder), **settings})
    output = StringIO()
    return RunFolder(config, Console(file=output, width=1000)), output


def test_leptons_that_lack_their_tracks_are_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_spark(monkeypatch, tmp_path)
    rows = [
        event_row(electrons=[lepton(40.0, 0.5, 0.1)], tracks=[track(40.0, 0.5, phi)])
        for phi in (0.1, 0.1 + 2e-4, 0.1 + 2e-4)
    ]
    path = write_delphes(tmp_path / "new.root", distinct(rows))
    run_folder, output = run_folder_with_output(tmp_path, features={"particles": False})

    new_events(run_folder, [f"QCD={path}"], tmp_path)

    note = "note: In 2 of 3 events of 'new-1' no track is within features.own_track_dr"
    assert note in output.getvalue()
    # Models of another radius would be refused.
    assert "Raise features.own_track_dr" not in output.getvalue()


def test_new_events_without_particles_are_refused_for_models_of_files_with_them(
    tmp_path: Path,
) -> None:
    path = write_delphes(tmp_path / "new.root", [event_row()], without=PARTICLE_BRANCHES)
    run_folder, _ = run_folder_with_output(tmp_path, features={"particles": False})
    network: Any = None
    model = FoundModel(Candidate("hlf", network), [], {}, None, {"has_particles": True})

    with pytest.raises(ConflictingFilesError, match=r"new\.root has no tracks"):
        new_events(run_folder, [f"QCD={path}"], tmp_path, [model])


class Evaluation(NamedTuple):
    """The arguments of an evaluation."""

    task: EvaluationTask
    test: Sequence[Path]
    train: Sequence[Path]


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> list[Evaluation]:
    """The evaluations that a command asks for; none is made."""
    evaluations: list[Evaluation] = []

    def record(
        _config: Any, _console: Any, _candidates: Any, task: Any, test: Any, *_: Any, **options: Any
    ) -> Any:
        evaluations.append(Evaluation(task, test, options["train"]))
        return {"runs": {}}

    monkeypatch.setattr("pipeline.commands.evaluate_files.kernel_items", lambda _: {})
    monkeypatch.setattr("pipeline.commands.evaluate_files.evaluate_models", record)
    return evaluations


def test_events_of_the_test_split_count_by_the_rates_of_their_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evaluations: list[Evaluation]
) -> None:
    nights = TrainedNights(tmp_path)
    nights.train(1)
    rates = SelectionRates(Rates({"qcd": Estimate(1.0, 0.0)}, {"qcd": 0}))
    monkeypatch.setattr("pipeline.commands.evaluate_files.rates_of_run", lambda *_: rates)

    evaluate_files(nights.run_folder, [], [], None)

    (evaluation,) = evaluations
    assert evaluation.task.rates == rates.known
    assert list(evaluation.test) == nights.dataset.files("test")
    # The curve of over-training compares them with the training split.
    assert list(evaluation.train) == nights.dataset.files("train")


def test_rates_are_those_of_the_evaluated_features_while_a_run_makes_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evaluations: list[Evaluation]
) -> None:
    nights = TrainedNights(tmp_path)
    nights.train(1)
    features_of_rates: list[str] = []

    def find_models_during_a_run(*arguments: Any) -> list[FoundModel]:
        models = _models(*arguments)
        nights.make_features()
        return models

    def record_rates(_config: Any, upstream: Mapping[str, Version]) -> SelectionRates:
        features_of_rates.append(upstream["features"].name)
        return SelectionRates()

    module = "pipeline.commands.evaluate_files"
    monkeypatch.setattr(f"{module}._models", find_models_during_a_run)
    monkeypatch.setattr(f"{module}.rates_of_run", record_rates)

    evaluate_files(nights.run_folder, [], [], None)

    (evaluation,) = evaluations
    evaluated_features = {path.parent.parent.name for path in evaluation.test}
    assert set(features_of_rates) == evaluated_features


def test_without_its_events_the_test_split_is_evaluated_without_rates(
    tmp_path: Path, evaluations: list[Evaluation]
) -> None:
    nights = TrainedNights(tmp_path)
    nights.train(1)
    output = StringIO()
    run_folder = RunFolder(nights.run_folder.config, Console(file=output, width=1000))
    shutil.rmtree(run_folder.store("ingest").folder)

    evaluate_files(run_folder, [], [], None)

    assert [evaluation.task.rates for evaluation in evaluations] == [None]
    assert "no rates: " in output.getvalue()


def test_a_model_of_other_thresholds_of_ingest_is_refused(
    tmp_path: Path, evaluations: list[Evaluation]
) -> None:
    nights = TrainedNights(tmp_path)
    nights.train(1)
    spec = small_spec("hlf")._replace(reading={"min_track_pt": 5.0})
    other = tmp_path / "other"
    other.mkdir()
    save_model(small_network(spec), spec, other / "model")

    with pytest.raises(ModelError, match=r"ingest\.min_track_pt 5\.0 instead of 0\.5"):
        evaluate_files(nights.run_folder, [str(other)], [], None)
    assert not evaluations


def state_plugin_code(nights: TrainedNights, code: dict[str, str]) -> None:
    """Let the features state digests of the plugins that computed them."""
    nights.dataset._replace(plugin_code=code).save(columns={})
    features = nights.run_folder.store("features")
    version = features.current()
    assert version is not None
    record_as_written(features, version)


@pytest.mark.usefixtures("evaluations")
def test_features_of_other_code_of_a_plugin_are_no_reference_for_new_events(tmp_path: Path) -> None:
    nights = TrainedNights(tmp_path)
    assert _dataset(nights.run_folder, is_needed=False) is not None

    state_plugin_code(nights, {"feature own": "before"})

    assert _dataset(nights.run_folder, is_needed=False) is None
    assert _dataset(nights.run_folder, is_needed=True) is not None


@pytest.mark.parametrize("inputs", [[], [f"qcd={SAMPLES}/qcd_13TeV_PU20_0.root"]])
def test_a_model_of_other_code_of_a_plugin_is_refused(
    tmp_path: Path, evaluations: list[Evaluation], inputs: list[str]
) -> None:
    nights = TrainedNights(tmp_path)
    nights.train(1, plugin_code={"feature own": "before"})
    state_plugin_code(nights, {"feature own": "now"})

    with pytest.raises(PluginCodeError, match="feature own"):
        evaluate_files(nights.run_folder, [], inputs, None)
    assert not evaluations


def test_the_test_split_is_refused_if_thresholds_of_ingest_changed_since(
    tmp_path: Path, evaluations: list[Evaluation]
) -> None:
    nights = TrainedNights(tmp_path)
    nights.train(1)
    description_file = nights.dataset.folder / "dataset.json"
    description = json.loads(description_file.read_text())
    description_file.write_text(json.dumps({**description, "reading": {"min_track_pt": 5.0}}))
    store = nights.run_folder.store("features")
    features = store.current()
    assert features is not None
    record_as_written(store, features)

    with pytest.raises(MissingInputError, match="made with other settings"):
        evaluate_files(nights.run_folder, [], [], None)
    assert not evaluations


def test_an_older_model_that_was_named_is_claimed_until_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nights = TrainedNights(tmp_path)
    nights.train(1)
    model = nights.run_dir / "train" / nights.training / "hlf"
    nights.train(2)
    claims: list[bool] = []

    def record_claim(*_: object, **__: object) -> dict[str, Any]:
        claims.append(is_claimed(model.parent))
        return {"runs": {}}

    monkeypatch.setattr("pipeline.commands.evaluate_files.kernel_items", lambda _: {})
    monkeypatch.setattr("pipeline.commands.evaluate_files.evaluate_models", record_claim)
    evaluate_files(nights.run_folder, [f"old={model}"], [], None)

    assert claims == [True]
    assert not is_claimed(model.parent)


SPLITS = "no boosted trees: the training and validation splits"


@pytest.mark.parametrize(
    ("num_seen", "wants_reference", "message"),
    [
        (0, True, ""),
        (3, True, f"{SPLITS} hold 3 of these events"),
        (None, True, f"{SPLITS} may hold copies of these events"),
        (0, False, ""),
    ],
)
def test_boosted_trees_are_the_reference_only_for_events_that_they_have_not_seen(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_seen: int | None,
    wants_reference: bool,
    message: str,
) -> None:
    dataset = write_dataset(tmp_path / "set", rows={"train": [4], "val": [5], "test": [6]})
    monkeypatch.setattr("pipeline.commands.evaluate_files.count_seen", lambda *_: num_seen)
    run_folder, output = run_folder_with_output(tmp_path, evaluate={"reference": wants_reference})
    events = EvaluatedEvents("new", dataset.files("test"))

    reference = _reference(run_folder, dataset, events)

    assert (reference is dataset) == (num_seen == 0 and wants_reference)
    assert output.getvalue().strip() == message
    assert _reference(run_folder, None, events) is None


def test_inputs_are_files_of_a_class_or_a_sample() -> None:
    config = Config.model_validate({**MINIMAL, "classes": ["QCD", "ttbar", "W/Z"]})

    samples = _samples(["W/Z=data/run=3/w.root", "qcd=/data/run=3/q.root"], config)

    assert [(sample.label, sample.files) for sample in samples] == [
        (2, ["data/run=3/w.root"]),
        (0, ["/data/run=3/q.root"]),
    ]


@pytest.mark.parametrize(
    "argument", ["/data/run=3/new.root", "run=3/new.root", "date=*/*.root", "new.root"]
)
def test_inputs_without_a_known_class_or_sample_are_refused(argument: str) -> None:
    with pytest.raises(ConfigError, match=r"there is no sample '.*predict"):
        _samples([argument], Config.model_validate(MINIMAL))


def test_new_files_count_by_their_own_sum_of_weights_and_never_by_a_number_of_others() -> None:
    samples = [
        {"name": "low", "label": 0, "weight": "genWeight", "sum_of_weights": "Runs.genEventSumw"},
        {"name": "high", "label": 0, "weight": "LHEWeight[1]", "sum_of_weights": 500},
        {"name": "ttbar", "label": 1, "weight": "none", "sum_of_weights": 70.5},
        {"name": "W", "label": 2, "weight": "genWeight"},
    ]
    for sample in samples:
        sample |= {"files": ["a"], "cross_section_pb": 10.0}
    config = Config.model_validate({**MINIMAL, "samples": samples})

    new_samples = _samples(["low=x", "high=y", "ttbar=z"], config)
    notes = _notes_about_rates(config.model_copy(update={"samples": new_samples}), config)

    assert [
        (sample.name, sample.weight, sample.sum_of_weights, sample.cross_section_pb)
        for sample in new_samples
    ] == [
        ("low", "genWeight", "Runs.genEventSumw", 10.0),
        ("new-2", "LHEWeight[1]", None, None),
        ("new-3", "none", None, None),
    ]
    assert "sum_of_weights of high, ttbar is a number of other files" in " ".join(notes)
    with pytest.raises(ConfigError, match="no class of one sample"):
        _samples(["QCD=x"], config)


def test_new_files_of_samples_that_lack_some_cross_sections_have_no_rates_for_that_reason() -> None:
    samples = [{**sample, "cross_section_pb": 10.0} for sample in MINIMAL["samples"]]
    del samples[1]["cross_section_pb"]
    config = Config.model_validate({**MINIMAL, "samples": samples})
    names = [sample["name"] for sample in samples]
    new_samples = _samples([f"{name}=x" for name in names], config)

    notes = _notes_about_rates(config.model_copy(update={"samples": new_samples}), config)

    (note,) = notes
    assert note.startswith(f"there are no rates: the config has no cross_section_pb of {names[1]}.")
