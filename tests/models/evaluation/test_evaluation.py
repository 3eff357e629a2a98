"""An evaluation: several models on the same events, their predictions, numbers and figures."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from evaluated_candidates import (
    RATES,
    SEPARATING_FEATURE,
    TASK,
    WITH_HISTORY,
    Evaluated,
    all_candidates,
    evaluate_again,
    read_strict_json,
    save_exported_only,
    separable_dataset,
)
from feature_datasets import CLASSES
from matplotlib.figure import Figure
from networks import NAMES, ON_PARTICLES, small_network
from sklearn.metrics import accuracy_score, confusion_matrix, roc_auc_score

from features.columns import hlf_names
from features.matrices import hlf_array
from models.evaluation import evaluation
from models.evaluation.boosted_trees import fitted_trees
from models.evaluation.curves import kolmogorov_smirnov
from models.evaluation.discriminant import discriminant
from models.evaluation.evaluation import evaluate
from models.evaluation.importance import num_predicted
from models.evaluation.intervals import thresholds
from models.evaluation.measurements import GRID
from models.evaluation.scored_events import balanced
from models.networks.registry import NETWORKS
from models.prediction import Candidate, column_array, predict

NUM_TEST = 250
NUM_TRAIN = 110
MODEL_FIGURES = ("calibration", "confusion", "efficiencies", "discriminant", "scores")
#: An area counts pairs of a signal and a background event, here about 80 x 170. Rounding to float32
#: may exchange a few.
FEW_PAIRS = 1e-3
#: Rounding of sums of weights in double precision, in another order.
ROUNDING = 1e-12
#: The backgrounds in the fractions of their rates.
FRACTIONS = {0: 4000 / 4300, 2: 300 / 4300}


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    folder = tmp_path_factory.mktemp("evaluation")
    dataset = separable_dataset(folder / "data")
    candidates = all_candidates(dataset, folder)
    out_dir = folder / "out"
    out_dir.mkdir()
    progress: list[tuple[int, int, str]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "saving_in_processes", lambda: nullcontext(save_exported_only))
        metrics = evaluate(
            candidates,
            dataset.files("test"),
            dataset.files("train"),
            TASK,
            out_dir,
            train_events=NUM_TRAIN,
            on_progress=lambda *event: progress.append(event),
        )
    return Evaluated(dataset, candidates, metrics, out_dir, progress)


@pytest.fixture
def figure_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the figures that an evaluation would save."""
    names: list[str] = []

    def record(_: Figure, stem: Path) -> None:
        names.append(f"{stem.parent.parent.name}/{stem.name}")

    monkeypatch.setattr(evaluation, "saving_in_processes", lambda: nullcontext(record))
    return names


@pytest.mark.slow
def test_all_files_are_written(evaluated: Evaluated) -> None:
    figures = [f"plots/{name}" for name in ("background_efficiency", "rejection", "importance")]
    expected = {"metrics.json", "curves.json", "working_points.json"}
    for candidate in evaluated.candidates:
        name = candidate.name
        figures += [f"{name}/plots/{figure}" for figure in MODEL_FIGURES]
        if name in WITH_HISTORY:
            figures.append(f"{name}/plots/learning_curve")
        expected |= {f"{name}/predictions.parquet", f"{name}/predictions.root"}
    expected |= {f"{figure}.{suffix}" for figure in figures for suffix in ("png", "pdf")}

    files = [path for path in evaluated.folder.rglob("*") if path.is_file()]

    assert {str(path.relative_to(evaluated.folder)) for path in files} == expected


def test_the_metrics_are_returned_and_written_as_strict_json(evaluated: Evaluated) -> None:
    metrics = evaluated.metrics

    assert read_strict_json(evaluated.folder / "metrics.json") == metrics
    assert list(metrics["runs"]) == [*NAMES, "boosted-trees", "exported"]
    assert metrics["classes"] == CLASSES
    assert metrics["signal"] == "ttbar"
    assert metrics["num_events"] == NUM_TEST
    assert metrics["rates_before"] == RATES


def test_working_points_decide_about_the_predictions_as_the_metrics_say(
    evaluated: Evaluated,
) -> None:
    """The formula is that of docs/trigger.md."""
    decisions = read_strict_json(evaluated.folder / "working_points.json")

    assert list(decisions) == list(evaluated.metrics["runs"])
    for name, decision in decisions.items():
        labels, probabilities, weights = evaluated.predictions(name)
        signal_label = CLASSES.index(decision["signal"])
        signal = probabilities[:, signal_label]
        background = np.zeros(len(labels))
        for class_name, fraction in decision["fractions"].items():
            background += fraction * probabilities[:, CLASSES.index(class_name)]
        is_signal = labels == signal_label
        measured_points = evaluated.metrics["runs"][name]["working_points"]
        for point, measured in zip(decision["points"], measured_points, strict=True):
            passes = signal / (signal + background) >= point["threshold"]
            efficiency = weights[passes & is_signal].sum() / weights[is_signal].sum()
            assert efficiency == pytest.approx(measured["signal"]["value"])
            assert efficiency >= point["signal_efficiency"] - 1e-9


def test_all_models_predict_the_same_events_in_the_order_of_the_files(
    evaluated: Evaluated,
) -> None:
    events = pa.concat_tables([pq.read_table(file) for file in evaluated.dataset.files("test")])
    identity = ["file_uuid", "entry", "sample", "label", "weight"]

    for name in evaluated.metrics["runs"]:
        table = pq.read_table(evaluated.folder / name / "predictions.parquet")
        branches = ["probability_QCD", "probability_ttbar", "probability_Wjets"]
        assert table.column_names == [*identity, "predicted", *branches]
        for column in identity:
            assert table[column].to_pylist() == events[column].to_pylist()


@pytest.mark.parametrize("name", [*NAMES, "boosted-trees", "exported"])
def test_numbers_are_those_of_the_predictions(evaluated: Evaluated, name: str) -> None:
    labels, probabilities, weights = evaluated.predictions(name)
    predicted = probabilities.argmax(axis=1)
    equal_weights = balanced(labels, weights, 3)

    numbers = evaluated.metrics["runs"][name]

    assert numbers["num_events"] == NUM_TEST
    assert list(numbers["events_per_class"].values()) == np.bincount(labels).tolist()
    accuracy = accuracy_score(labels, predicted, sample_weight=equal_weights)
    assert numbers["accuracy"]["value"] == pytest.approx(accuracy)
    assert 0 < numbers["accuracy"]["error"] < 0.1
    shares = confusion_matrix(labels, predicted, sample_weight=weights, normalize="true")
    np.testing.assert_allclose(numbers["confusion"]["by_truth"], shares)
    for label, class_name in enumerate(CLASSES):
        score = probabilities[:, label]
        area = roc_auc_score(labels == label, score, sample_weight=equal_weights)
        assert numbers["auc"][class_name]["value"] == pytest.approx(area)
        assert 0 < numbers["auc"][class_name]["error"] < 0.1
    backgrounds = {"all backgrounds": FRACTIONS, "QCD": {0: 1.0}, "W+jets": {2: 1.0}}
    for background, fractions in backgrounds.items():
        score = discriminant(probabilities, signal={1: 1.0}, fractions=fractions)
        class_weights = np.array([fractions.get(0, 0.0), 1.0, fractions.get(2, 0.0)])
        event_weights = equal_weights * class_weights[labels]
        area = roc_auc_score(labels == 1, score, sample_weight=event_weights)
        assert numbers["auc_against"][background]["value"] == pytest.approx(area)


def test_models_are_compared_in_pairs_with_the_best(evaluated: Evaluated) -> None:
    behind_best = evaluated.metrics["behind_best"]
    areas = {
        name: numbers["auc_against"]["all backgrounds"]["value"]
        for name, numbers in evaluated.metrics["runs"].items()
    }
    best = max(areas, key=lambda name: areas[name])

    assert evaluated.metrics["best"] == best
    assert behind_best[best] == {"value": 0, "error": 0}
    for name, area in areas.items():
        assert behind_best[name]["value"] == pytest.approx(areas[best] - area)
        if name != best and {name, best} != {"hlf", "exported"}:
            assert behind_best[name]["error"] > FEW_PAIRS
    # The exported network gives the numbers of its network, so their distances to the best are the
    # same.
    exported_error = behind_best["exported"]["error"]
    assert behind_best["hlf"]["error"] == pytest.approx(exported_error, abs=FEW_PAIRS)


def test_scores_are_compared_with_those_of_the_first_training_events(
    evaluated: Evaluated,
) -> None:
    for candidate in evaluated.candidates:
        table = predict(candidate.model, evaluated.dataset.files("train"))[:NUM_TRAIN]
        train_labels = table["label"].to_numpy()
        train_scores = column_array(table, "probability").astype(float)
        train_weights = table["weight"].to_numpy().astype(float)
        labels, probabilities, weights = evaluated.predictions(candidate.name)
        comparison = evaluated.metrics["runs"][candidate.name]["train_against_test"]
        for output, output_name in enumerate(CLASSES):
            for label, name in enumerate(CLASSES):
                in_train, in_test = train_labels == label, labels == label
                expected = kolmogorov_smirnov(
                    train_scores[in_train, output],
                    train_weights[in_train],
                    probabilities[in_test, output],
                    weights[in_test],
                )
                assert comparison[output_name][name] == pytest.approx(expected, abs=1e-4)


def test_progress_counts_all_events_and_names_each_activity(evaluated: Evaluated) -> None:
    labels = evaluated.predictions("hlf").labels
    num_events = len(evaluated.candidates) * (NUM_TEST + NUM_TRAIN)
    for candidate in evaluated.candidates:
        num_events += num_predicted(candidate.model.inputs, labels)

    counts, totals, activities = zip(*evaluated.progress, strict=True)

    assert set(totals) == {num_events}
    assert list(counts) == sorted(counts)
    assert (counts[-1], activities[-1]) == (num_events, "drawing all")
    verbs = ("predicting with", "measuring", "shuffling inputs of", "drawing")
    distinct_activities = list(dict.fromkeys(activities))
    for candidate in evaluated.candidates:
        name = candidate.name
        of_model = [activity for activity in distinct_activities if activity.endswith(f" {name}")]
        assert of_model == [f"{verb} {name}" for verb in verbs]


def test_the_feature_that_separates_the_classes_is_important(evaluated: Evaluated) -> None:
    importances = {
        name: numbers["importance"]
        for name, numbers in evaluated.metrics["runs"].items()
        if "importance" in numbers
    }

    assert list(importances) == ["hlf", "boosted-trees", "exported"]
    trees = {name: loss["value"] for name, loss in importances["boosted-trees"].items()}
    assert list(trees) == list(hlf_names())
    assert trees.pop(SEPARATING_FEATURE) > 0.2
    assert max(map(abs, trees.values())) < 0.05


def test_networks_on_particles_have_the_importance_of_each_type(evaluated: Evaluated) -> None:
    importances = {
        name: numbers["importance_of_kinds"]
        for name, numbers in evaluated.metrics["runs"].items()
        if "importance_of_kinds" in numbers
    }

    assert list(importances) == ON_PARTICLES
    for name, losses in importances.items():
        expected = ["lepton", "tracks", "photons", "neutral hadrons"]
        if "hlf" in NETWORKS[name].inputs:
            expected.append("high-level features")
        assert list(losses) == expected
        for loss in losses.values():
            assert abs(loss["value"]) < 1
            assert 0 <= loss["error"] < 0.2


def test_trees_are_fitted_with_event_weights_times_class_weights(evaluated: Evaluated) -> None:
    events = pa.concat_tables([pq.read_table(file) for file in evaluated.dataset.files("train")])
    hlf, labels = hlf_array(events), events["label"].to_numpy()
    weights = events["weight"].to_numpy() * np.array([3.0, 1.0, 0.5])[labels]

    trees = fitted_trees(hlf, labels, weights, classes=CLASSES, seed=1)

    probabilities = evaluated.candidate("boosted-trees").model.probabilities({"hlf": hlf})
    np.testing.assert_array_equal(probabilities, trees.probabilities({"hlf": hlf}))


def test_curves_are_against_all_backgrounds_and_against_each(evaluated: Evaluated) -> None:
    curves = read_strict_json(evaluated.folder / "curves.json")

    assert list(curves) == ["all backgrounds", "QCD", "W+jets"]
    for models in curves.values():
        assert list(models) == list(evaluated.metrics["runs"])
    labels, probabilities, weights = evaluated.predictions("boosted-trees")
    is_signal, is_background = labels == 1, labels == 2
    _, ttbar, wjets = probabilities.T
    score = ttbar / (ttbar + wjets)
    cuts = thresholds(score[is_signal], weights[is_signal], GRID)
    weight_passing = [weights[is_background & (score >= cut)].sum() for cut in cuts]
    efficiency = np.array(weight_passing) / weights[is_background].sum()
    curve = curves["W+jets"]["boosted-trees"]
    np.testing.assert_allclose(curve["background_efficiency"], efficiency, atol=1e-6)
    assert curve["signal_efficiency"] == GRID.tolist()


@pytest.mark.slow
@pytest.mark.usefixtures("figure_names")
def test_shifted_features_change_only_the_models_on_features_alone(
    evaluated: Evaluated, tmp_path: Path
) -> None:
    tables = [pq.read_table(file) for file in evaluated.dataset.files("test")]
    hlf = np.concatenate([hlf_array(table) for table in tables])
    shifted = {"unchanged": hlf, "reversed": hlf[::-1].copy()}
    # Particles are not shifted: a shift of 0 would say that the energy scale does not matter.
    candidates = [evaluated.candidate(name) for name in ("hlf", *ON_PARTICLES)]

    runs = evaluate_again(evaluated, tmp_path, candidates, shifted=shifted)["runs"]

    for name in ON_PARTICLES:
        assert runs[name]["systematics"] == {}
    systematics = runs["hlf"]["systematics"]
    assert systematics["unchanged"]["accuracy"]["shift"] == pytest.approx(0, abs=ROUNDING)
    labels, _, weights = evaluated.predictions("hlf")
    network = evaluated.candidate("hlf").model
    predicted = network.probabilities({"hlf": hlf[::-1]}).argmax(axis=1)
    equal_weights = balanced(labels, weights, 3)
    accuracy = accuracy_score(labels, predicted, sample_weight=equal_weights)
    assert systematics["reversed"]["accuracy"]["value"] == pytest.approx(accuracy)
    points = systematics["reversed"]["working_points"]
    assert [point["wanted"] for point in points] == list(TASK.working_points)
    assert runs["hlf"]["weights"] == {}


@pytest.mark.slow
def test_an_evaluation_needs_neither_training_files_nor_points_nor_rates(
    evaluated: Evaluated, figure_names: list[str], tmp_path: Path
) -> None:
    candidate = Candidate("one", small_network("inclusive", dtype=torch.float32))
    task = TASK._replace(working_points=[], rates=None)

    metrics = evaluate_again(evaluated, tmp_path, [candidate], task=task)

    numbers = metrics["runs"]["one"]
    assert metrics["rates_before"] is None
    assert numbers["train_against_test"] == numbers["efficiency_against"] == {}
    assert numbers["working_points"] == []
    assert "importance" not in numbers
    model_figures = {"calibration", "confusion", "discriminant", "scores"}
    shared_figures = {"background_efficiency", "rejection"}
    expected = {f"one/{name}" for name in model_figures}
    expected |= {f"{tmp_path.name}/{name}" for name in shared_figures}
    assert len(figure_names) == len(expected)
    assert set(figure_names) == expected


@pytest.mark.usefixtures("figure_names")
def test_points_without_rates_have_neither_rates_nor_purity(
    evaluated: Evaluated, tmp_path: Path
) -> None:
    task = TASK._replace(rates=None)

    metrics = evaluate_again(evaluated, tmp_path, [evaluated.candidate("hlf")], task=task)

    for point in metrics["runs"]["hlf"]["working_points"]:
        assert not point.keys() & {"rates", "total_rate", "purity"}


@pytest.mark.slow
@pytest.mark.usefixtures("figure_names")
def test_further_trainings_are_measured_on_the_same_events(
    evaluated: Evaluated, tmp_path: Path
) -> None:
    networks = [small_network("hlf", dtype=torch.float32, seed=seed) for seed in (1, 2, 3)]
    candidate = Candidate("hlf", networks[0], further=networks[1:])
    progress: list[tuple[int, int, str]] = []

    metrics = evaluate_again(
        evaluated, tmp_path, [candidate], on_progress=lambda *event: progress.append(event)
    )

    num_done, num_events, _ = progress[-1]
    assert num_done == num_events
    trainings = metrics["runs"]["hlf"]["trainings"]
    accuracies, areas = [], []
    for network in networks:
        table = predict(network, evaluated.dataset.files("test"))
        labels = table["label"].to_numpy()
        scores = column_array(table, "probability").astype(float)
        weights = balanced(labels, table["weight"].to_numpy(), 3)
        accuracies.append(accuracy_score(labels, scores.argmax(axis=1), sample_weight=weights))
        areas.append(roc_auc_score(labels == 0, scores[:, 0], sample_weight=weights))
    assert trainings["count"] == 3
    assert trainings["accuracy"]["mean"] == pytest.approx(np.mean(accuracies))
    assert trainings["accuracy"]["spread"] == pytest.approx(np.std(accuracies, ddof=1))
    area = {"mean": np.mean(areas), "spread": np.std(areas, ddof=1)}
    assert trainings["auc"]["QCD"] == pytest.approx(area)
    # The other numbers are those of the first training.
    assert metrics["runs"]["hlf"]["accuracy"]["value"] == pytest.approx(accuracies[0])
    assert "trainings" not in evaluated.metrics["runs"]["hlf"]
