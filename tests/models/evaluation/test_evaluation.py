"""An evaluation: several models on the same events, their predictions, numbers and figures."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from feature_datasets import CLASSES, write_dataset
from matplotlib.figure import Figure
from networks import NAMES, ON_PARTICLES, small_network, small_spec
from sklearn.metrics import accuracy_score, confusion_matrix, roc_auc_score

from features.columns import hlf_names
from features.dataset import FeatureDataset
from features.matrices import hlf_array
from models.evaluation import evaluation
from models.evaluation.boosted_trees import boosted_trees, fitted_trees
from models.evaluation.bootstrap import Estimate
from models.evaluation.curves import kolmogorov_smirnov
from models.evaluation.discriminant import discriminant
from models.evaluation.evaluation import evaluate
from models.evaluation.evaluation_task import EvaluationTask
from models.evaluation.importance import num_predicted
from models.evaluation.intervals import thresholds
from models.evaluation.measurements import GRID
from models.evaluation.rates import Rates
from models.evaluation.scored_events import balanced, within_classes
from models.evaluation.style import PlotLabels, save_figure
from models.export.onnx_classifier import OnnxClassifier
from models.export.onnx_export import export_onnx
from models.networks.registry import NETWORKS
from models.prediction import Candidate, column_array, predict
from models.prediction_files import probability_branches
from models.saved_model import model_spec

HISTORY = [
    {"epoch": epoch, "train_loss": 1 / (epoch + 1), "val_loss": abs(epoch - 2) + 0.5}
    for epoch in range(5)
]
RATES = {"QCD": 4000.0, "ttbar": 10.0, "W+jets": 300.0}
TASK = EvaluationTask(
    CLASSES,
    [1],
    [0.5, 0.99],
    Rates(
        {name: Estimate(rate, 0.1 * rate) for name, rate in RATES.items()},
        {name: CLASSES.index(name) for name in RATES},
    ),
    PlotLabels("", "technical sample", 13),
    seed=3,
)
#: The only feature that labels of the made events depend on.
TELLING = "met"
TRAIN_EVENTS = 110
WITH_HISTORY = ("hlf", "particles")
ALWAYS = ("calibration", "confusion", "efficiencies", "discriminant", "scores")
#: An area counts pairs of a signal and a background event, here about 80 x 170. Rounding to float32 may turn a few.
FEW_PAIRS = 1e-3
#: Of sums of weights in double precision, in another order.
ROUNDING = 1e-12
#: Parts of the backgrounds in their rates.
FRACTIONS = {0: 4000 / 4300, 2: 300 / 4300}


class Done(NamedTuple):
    """An evaluation that was made."""

    dataset: FeatureDataset
    candidates: list[Candidate]
    metrics: dict[str, Any]
    folder: Path
    told: list[tuple[int, int, str]]


def made_dataset(folder: Path) -> FeatureDataset:
    """Events whose high-level features say nothing of the class, but for one."""
    rows = {"train": [90, 60], "val": [5], "test": [150, 100]}
    dataset = write_dataset(folder, rows=rows, separation=0.0, class_weights=(3.0, 1.0, 0.5))
    for split in ("train", "test"):
        for file in dataset.files(split):
            table = pq.read_table(file)
            message = pa.array(
                table[TELLING].to_numpy()
                + np.float32(25) * table["label"].to_numpy().astype(np.float32)
            )
            pq.write_table(
                table.set_column(table.schema.get_field_index(TELLING), TELLING, message), file
            )
    return dataset


def made_candidates(dataset: FeatureDataset, folder: Path) -> list[Candidate]:
    """Every kind of model; only two networks have a history.

    They scale as fits the events. Otherwise they are so sure of most events that these differ in rounding alone.
    """
    specs = {name: model_spec(small_spec(name).settings, dataset) for name in NAMES}
    networks = [
        Candidate(name, small_network(spec, dtype=torch.float32)) for name, spec in specs.items()
    ]
    with_history = [
        network._replace(history=HISTORY) if network.name in WITH_HISTORY else network
        for network in networks
    ]
    trees = boosted_trees(dataset.files("train"), CLASSES, dataset.class_weights, seed=1)
    path = folder / "exported.onnx"
    export_onnx(small_network(specs["hlf"], dtype=torch.float32), specs["hlf"], path)
    return [*with_history, trees, Candidate("exported", OnnxClassifier.load(path))]


def save_few(figure: Figure, stem: Path) -> None:
    """Draw the figures of one model; the others' files stay empty, since drawing takes most of the time."""
    if stem.parent.parent.name == "exported":
        save_figure(figure, stem)
        return
    for suffix in ("png", "pdf"):
        stem.with_suffix(f".{suffix}").touch()


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("evaluation")
    dataset = made_dataset(folder / "data")
    candidates = made_candidates(dataset, folder)
    out = folder / "out"
    out.mkdir()
    reports: list[tuple[int, int, str]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluation, "saving_in_processes", lambda: nullcontext(save_few))
        metrics = evaluate(
            candidates,
            dataset.files("test"),
            dataset.files("train"),
            TASK,
            out,
            train_events=TRAIN_EVENTS,
            on_progress=lambda *news: reports.append(news),
        )
    return Done(dataset, candidates, metrics, out, reports)


@pytest.fixture
def unsaved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Figures are not drawn; their names are kept."""
    saved: list[str] = []

    def note(_: Figure, stem: Path) -> None:
        saved.append(f"{stem.parent.parent.name}/{stem.name}")

    monkeypatch.setattr(evaluation, "saving_in_processes", lambda: nullcontext(note))
    return saved


def again(done: Done, out: Path, names: Sequence[str] = ("hlf",), **changes: Any) -> dict[str, Any]:
    """Some models once more, without training events."""
    settings = {
        "task": TASK,
        "candidates": [candidate for candidate in done.candidates if candidate.name in names],
    } | changes
    return evaluate(
        test_files=done.dataset.files("test"),
        train_files=[],
        out_dir=out,
        train_events=5,
        **settings,
    )


def predictions_of(done: Done, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels and probabilities as they were written, and weights within classes."""
    table = pq.read_table(done.folder / name / "predictions.parquet")
    labels = table["label"].to_numpy()
    scores = np.stack([table[name].to_numpy() for name in probability_branches(CLASSES)], axis=1)
    return labels, scores.astype(float), within_classes(labels, table["weight"].to_numpy())


def refuse_constant(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


@pytest.mark.slow
def test_all_files_are_written_and_learning_curves_where_there_is_a_history(done: Done) -> None:
    expected = {"metrics.json", "curves.json", "working_points.json"}
    for name in ("background_efficiency", "rejection", "importance"):
        expected |= {f"plots/{name}.png", f"plots/{name}.pdf"}
    for candidate in done.candidates:
        names = [*ALWAYS, *(["learning_curve"] if candidate.name in WITH_HISTORY else [])]
        expected |= {
            f"{candidate.name}/plots/{name}.{suffix}" for name in names for suffix in ("png", "pdf")
        }
        expected |= {f"{candidate.name}/predictions.parquet", f"{candidate.name}/predictions.root"}
    assert {
        str(path.relative_to(done.folder)) for path in done.folder.rglob("*") if path.is_file()
    } == expected


def test_what_is_returned_is_what_the_file_says_in_strict_json(done: Done) -> None:
    text = (done.folder / "metrics.json").read_text(encoding="utf-8")
    assert json.loads(text, parse_constant=refuse_constant) == done.metrics
    assert list(done.metrics["runs"]) == [*NAMES, "boosted-trees", "exported"]
    assert {
        key: done.metrics[key] for key in ("classes", "signal", "num_events", "rates_before")
    } == {
        "classes": CLASSES,
        "signal": "ttbar",
        "num_events": 250,
        "rates_before": RATES,
    }


def test_working_points_decide_about_the_predictions_as_the_metrics_say(done: Done) -> None:
    """As docs/trigger.md says: with the thresholds and fractions, and the columns of the predictions."""
    document = json.loads((done.folder / "working_points.json").read_text(encoding="utf-8"))
    assert list(document) == list(done.metrics["runs"])
    for name, actual in document.items():
        labels, scores, weights = predictions_of(done, name)
        signal = scores[:, CLASSES.index(actual["signal"])]
        background = sum(
            chunk * scores[:, CLASSES.index(class_name)]
            for class_name, chunk in actual["fractions"].items()
        )
        is_signal = labels == CLASSES.index(actual["signal"])
        for point, measured in zip(
            actual["points"], done.metrics["runs"][name]["working_points"], strict=True
        ):
            passes = (signal / (signal + background) >= point["threshold"]) & is_signal
            retained = weights[passes].sum() / weights[is_signal].sum()
            assert retained == pytest.approx(measured["signal"]["value"])
            assert retained >= point["signal_efficiency"] - 1e-9


def test_all_models_predict_the_same_events_in_the_order_of_the_files(done: Done) -> None:
    rows = pa.concat_tables([pq.read_table(file) for file in done.dataset.files("test")])
    for name in done.metrics["runs"]:
        table = pq.read_table(done.folder / name / "predictions.parquet")
        assert table.column_names == [
            "file_uuid", "entry", "sample", "label", "weight",
            "predicted", "probability_QCD", "probability_ttbar", "probability_Wjets",
        ]  # fmt: skip
        for column in ("file_uuid", "entry", "sample", "label", "weight"):
            assert table[column].to_pylist() == rows[column].to_pylist()


def test_numbers_are_those_of_the_predictions(done: Done) -> None:
    for name, run in done.metrics["runs"].items():
        labels, scores, weights = predictions_of(done, name)
        assert run["num_events"] == 250
        assert run["events_per_class"] == {
            class_name: int((labels == position).sum())
            for position, class_name in enumerate(CLASSES)
        }
        alike = balanced(labels, weights, 3)
        assert run["accuracy"]["value"] == pytest.approx(
            accuracy_score(labels, scores.argmax(axis=1), sample_weight=alike)
        )
        assert 0 < run["accuracy"]["error"] < 0.1
        np.testing.assert_allclose(
            run["confusion"]["by_truth"],
            confusion_matrix(
                labels, scores.argmax(axis=1), sample_weight=weights, normalize="true"
            ),
        )
        for position, class_name in enumerate(CLASSES):
            area = roc_auc_score(labels == position, scores[:, position], sample_weight=alike)
            assert run["auc"][class_name]["value"] == pytest.approx(area)
            assert 0 < run["auc"][class_name]["error"] < 0.1
        for class_name, fractions in {
            "all backgrounds": FRACTIONS,
            "QCD": {0: 1.0},
            "W+jets": {2: 1.0},
        }.items():
            score = discriminant(scores, signal={1: 1.0}, fractions=fractions)
            chunks = alike * np.array([fractions.get(0, 0.0), 1.0, fractions.get(2, 0.0)])[labels]
            area = roc_auc_score(labels == 1, score, sample_weight=chunks)
            assert run["auc_against"][class_name]["value"] == pytest.approx(area)


def test_models_are_compared_in_pairs_with_the_best(done: Done) -> None:
    runs = done.metrics["runs"]
    best = max(runs, key=lambda name: runs[name]["auc_against"]["all backgrounds"]["value"])
    assert done.metrics["best"] == best
    for name, run in runs.items():
        area, behind = run["auc_against"]["all backgrounds"], done.metrics["behind_best"][name]
        assert behind["value"] == pytest.approx(
            runs[best]["auc_against"]["all backgrounds"]["value"] - area["value"]
        )
        if name == best:
            assert behind == {"value": 0, "error": 0}
        elif {name, best} != {"hlf", "exported"}:
            assert behind["error"] > FEW_PAIRS
    # The exported network gives the numbers of its network: their difference is no chance.
    first, second = (done.metrics["behind_best"][name]["error"] for name in ("hlf", "exported"))
    assert first == pytest.approx(second, abs=FEW_PAIRS)


def test_scores_are_compared_with_those_of_the_first_training_events(done: Done) -> None:
    for candidate in done.candidates:
        train = predict(candidate.model, done.dataset.files("train"))[:TRAIN_EVENTS]
        astype_before, of_train = (
            column_array(train, "probability").astype(float),
            train["label"].to_numpy(),
        )
        train_weights = train["weight"].to_numpy().astype(float)
        labels, scores, weights = predictions_of(done, candidate.name)
        for output, name in enumerate(CLASSES):
            for truth, true_name in enumerate(CLASSES):
                first, second = of_train == truth, labels == truth
                expected = kolmogorov_smirnov(
                    astype_before[first, output],
                    train_weights[first],
                    scores[second, output],
                    weights[second],
                )
                actual = done.metrics["runs"][candidate.name]["train_against_test"][name][true_name]
                assert actual == pytest.approx(expected, abs=1e-4)


def test_progress_counts_all_events_and_says_what_is_being_done(done: Done) -> None:
    test, train = (done.dataset.num_rows(split) for split in ("test", "train"))
    labels = np.concatenate(
        [pq.read_table(file)["label"].to_numpy() for file in done.dataset.files("test")]
    )
    total = len(done.candidates) * (test + min(train, TRAIN_EVENTS))
    total += sum(num_predicted(each.model.inputs, labels) for each in done.candidates)
    counts, totals, message = zip(*done.told, strict=True)
    assert set(totals) == {total}
    assert list(counts) == sorted(counts)
    assert (counts[-1], message[-1]) == (total, "drawing all")
    for candidate in done.candidates:
        steps = [word for word in dict.fromkeys(message) if word.endswith(f" {candidate.name}")]
        verbs = ("predicting with", "measuring", "shuffling inputs of", "drawing")
        assert steps == [f"{verb} {candidate.name}" for verb in verbs]


def test_features_are_important_to_models_on_them_alone_and_the_one_that_tells_is_found(
    done: Done,
) -> None:
    important = {
        name: run["importance"] for name, run in done.metrics["runs"].items() if "importance" in run
    }
    assert list(important) == ["hlf", "boosted-trees", "exported"]
    trees = important["boosted-trees"]
    assert list(trees) == list(hlf_names())
    remaining = [each["value"] for name, each in trees.items() if name != TELLING]
    assert trees[TELLING]["value"] > 0.2
    assert max(np.abs(remaining)) < 0.05


def test_kinds_of_particles_are_important_to_networks_on_particles(done: Done) -> None:
    important = {
        name: run["importance_of_kinds"]
        for name, run in done.metrics["runs"].items()
        if "importance_of_kinds" in run
    }
    assert list(important) == ON_PARTICLES
    kinds = ["lepton", "tracks", "photons", "neutral hadrons"]
    for name, actual in important.items():
        assert list(actual) == kinds + (
            ["high-level features"] if "hlf" in NETWORKS[name].inputs else []
        )
        assert all(abs(each["value"]) < 1 and 0 <= each["error"] < 0.2 for each in actual.values())


def test_trees_are_fitted_with_event_weights_times_class_weights(done: Done) -> None:
    rows = pa.concat_tables([pq.read_table(file) for file in done.dataset.files("train")])
    hlf, labels = hlf_array(rows), rows["label"].to_numpy()
    weights = rows["weight"].to_numpy() * np.array([3.0, 1.0, 0.5])[labels]
    trees = fitted_trees(hlf, labels, weights, classes=CLASSES, seed=1)
    actual = next(
        candidate.model for candidate in done.candidates if candidate.name == "boosted-trees"
    )
    np.testing.assert_array_equal(
        actual.probabilities({"hlf": hlf}), trees.probabilities({"hlf": hlf})
    )


def test_curves_are_against_all_backgrounds_and_against_each_and_are_written(done: Done) -> None:
    written = json.loads(
        (done.folder / "curves.json").read_text(encoding="utf-8"), parse_constant=refuse_constant
    )
    assert {panel: list(curves) for panel, curves in written.items()} == {
        panel: list(done.metrics["runs"]) for panel in ("all backgrounds", "QCD", "W+jets")
    }
    labels, scores, weights = predictions_of(done, "boosted-trees")
    ratio = scores[:, 1] / (scores[:, 1] + scores[:, 2])
    actual = written["W+jets"]["boosted-trees"]
    cuts = thresholds(ratio[labels == 1], weights[labels == 1], GRID)
    leftovers = [
        weights[(labels == 2) & (ratio >= cut)].sum() / weights[labels == 2].sum() for cut in cuts
    ]
    np.testing.assert_allclose(actual["background_efficiency"], leftovers, atol=1e-6)
    assert actual["signal_efficiency"] == GRID.tolist()


@pytest.mark.slow
def test_shifted_features_change_the_models_that_take_them(
    done: Done, unsaved: list[str], tmp_path: Path
) -> None:
    hlf = np.concatenate([hlf_array(pq.read_table(file)) for file in done.dataset.files("test")])
    shifted = {"none": hlf, "all": hlf[::-1].copy()}
    run = again(done, tmp_path, shifted=shifted)["runs"]["hlf"]
    assert run["systematics"]["none"]["accuracy"]["shift"] == pytest.approx(0, abs=ROUNDING)
    labels, _, weights = predictions_of(done, "hlf")
    (hlf_alone,) = (candidate for candidate in done.candidates if candidate.name == "hlf")
    wrong = hlf_alone.model.probabilities({"hlf": hlf[::-1]}).argmax(axis=1)
    shares = [
        np.average(wrong[labels == label] == label, weights=weights[labels == label])
        for label in range(3)
    ]
    assert run["systematics"]["all"]["accuracy"]["value"] == pytest.approx(np.mean(shares))
    assert run["weights"] == {}
    # A shift of 0 would say that the energy scale does not matter to a network on particles, which are not shifted.
    metrics = again(done, Path(tempfile.mkdtemp(dir=tmp_path)), ON_PARTICLES, shifted=shifted)
    assert (
        [metric["systematics"] for metric in metrics["runs"].values()]
        == [{}] * len(ON_PARTICLES)
        != []
    )
    assert [point["wanted"] for point in run["systematics"]["all"]["working_points"]] == list(
        TASK.working_points
    )


@pytest.mark.slow
def test_without_training_files_points_or_rates_the_evaluation_goes_without(
    done: Done, unsaved: list[str], tmp_path: Path
) -> None:
    candidate = Candidate("one", small_network("inclusive", dtype=torch.float32))
    metrics = again(
        done, tmp_path, candidates=[candidate], task=TASK._replace(working_points=[], rates=None)
    )
    run = metrics["runs"]["one"]
    assert metrics["rates_before"] is None
    assert (run["train_against_test"], run["working_points"], run["efficiency_against"]) == (
        {},
        [],
        {},
    )
    assert "importance" not in run
    expected = {"one/calibration", "one/confusion", "one/discriminant", "one/scores"}
    assert {name.replace(tmp_path.name, "all") for name in unsaved} == {
        *expected, "all/background_efficiency", "all/rejection"
    }  # fmt: skip


def test_points_without_rates_have_neither_rates_nor_purity(
    done: Done, unsaved: list[str], tmp_path: Path
) -> None:
    metrics = again(done, tmp_path, task=TASK._replace(rates=None))
    for point in metrics["runs"]["hlf"]["working_points"]:
        assert point.keys() == {
            "wanted", "threshold", "measurable", "num_failing", "signal", "backgrounds", "all_backgrounds"
        }  # fmt: skip


@pytest.mark.slow
def test_further_trainings_are_measured_on_the_same_events(
    done: Done, unsaved: list[str], tmp_path: Path
) -> None:
    models = [small_network("hlf", dtype=torch.float32, seed=seed) for seed in (1, 2, 3)]
    candidate = Candidate("hlf", models[0], further=models[1:])
    reports: list[tuple[int, int, str]] = []
    metrics = again(
        done, tmp_path, candidates=[candidate], on_progress=lambda *news: reports.append(news)
    )
    assert reports[-1][0] == reports[-1][1]
    actual = metrics["runs"]["hlf"]["trainings"]
    accuracies, areas = [], []
    for model in models:
        table = predict(model, done.dataset.files("test"))
        labels, scores = table["label"].to_numpy(), column_array(table, "probability").astype(float)
        weights = balanced(labels, table["weight"].to_numpy(), 3)
        accuracies.append(accuracy_score(labels, scores.argmax(axis=1), sample_weight=weights))
        areas.append(roc_auc_score(labels == 0, scores[:, 0], sample_weight=weights))
    assert (actual["count"], actual["accuracy"]["mean"]) == (3, pytest.approx(np.mean(accuracies)))
    assert actual["accuracy"]["spread"] == pytest.approx(np.std(accuracies, ddof=1))
    assert actual["auc"]["QCD"] == pytest.approx(
        {"mean": np.mean(areas), "spread": np.std(areas, ddof=1)}
    )
    # What stands for the network is of the first one.
    assert metrics["runs"]["hlf"]["accuracy"]["value"] == pytest.approx(accuracies[0])
    assert "trainings" not in done.metrics["runs"]["hlf"]
