"""The network, its scaling, saving, prediction and evaluation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from feature_datasets import CLASSES, write_dataset
from torch import nn

from features.schema import NUM_HLF
from models.errors import ModelError, SavedModelError, UndefinedMetricError
from models.evaluate import evaluate, measure
from models.metrics import RocCurve
from models.plots import plot_confusion, plot_learning_curve, plot_roc
from models.predict import predict, probabilities
from models.saved_model import ModelSpec, build, load_model, save_model
from models.scaling import Standardize
from models.settings import ModelSettings
from models.style import PlotLabels, save_figure

MEAN = np.linspace(-50, 200, NUM_HLF).tolist()
STD = np.linspace(0.1, 60, NUM_HLF).tolist()
SPEC = ModelSpec(ModelSettings(hidden=[8, 4]), CLASSES, MEAN, STD)
HISTORY = [{"epoch": epoch, "train_loss": 1 / (epoch + 1), "val_loss": abs(epoch - 2) + 0.5} for epoch in range(5)]
LABELS = PlotLabels("", "technical sample", 13)


@pytest.fixture(autouse=True)
def same_weights_every_time() -> None:
    torch.manual_seed(1)


def test_scaling_centres_and_scales_each_column() -> None:
    rows = np.random.default_rng(1).normal(MEAN, STD, (5000, NUM_HLF))
    scaled = Standardize(MEAN, STD)(torch.from_numpy(rows).float())
    assert torch.allclose(scaled.mean(dim=0), torch.zeros(NUM_HLF), atol=0.1)
    assert torch.allclose(scaled.std(dim=0), torch.ones(NUM_HLF), atol=0.1)


def test_the_network_has_the_shape_of_cerns() -> None:
    model = build(ModelSpec(ModelSettings(), CLASSES, MEAN, STD))
    widths = [(layer.in_features, layer.out_features) for layer in model.layers if isinstance(layer, nn.Linear)]
    assert widths == [(14, 50), (50, 20), (20, 10), (10, 3)]
    assert sum(parameter.numel() for parameter in model.parameters()) == 2013


def test_the_forward_pass_by_hand() -> None:
    model = build(SPEC)
    raw = torch.randn(6, NUM_HLF) * 50
    x = (raw - torch.tensor(MEAN)) / torch.tensor(STD)
    weights = [p.detach() for p in model.parameters()]
    for index in range(0, 4, 2):
        x = torch.relu(x @ weights[index].T + weights[index + 1])
    torch.testing.assert_close(model(raw).detach(), x @ weights[4].T + weights[5], rtol=1e-4, atol=1e-4)


def test_a_saved_model_gives_the_same_numbers(tmp_path: Path) -> None:
    model = build(SPEC)
    save_model(model, SPEC, tmp_path / "model")
    loaded, spec = load_model(tmp_path / "model")
    raw = torch.randn(10, NUM_HLF)
    assert torch.equal(model(raw), loaded(raw))
    assert spec == SPEC


def test_a_model_folder_that_is_damaged_or_foreign_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SavedModelError, match="no readable model"):
        load_model(tmp_path)
    save_model(build(SPEC), SPEC, tmp_path)
    (tmp_path / "weights.pt").write_bytes(b"garbage")
    with pytest.raises(SavedModelError, match="no readable model"):
        load_model(tmp_path)
    save_model(build(SPEC), SPEC, tmp_path)
    content = json.loads((tmp_path / "model.json").read_text())
    (tmp_path / "model.json").write_text(json.dumps(content | {"inputs": {"hlf": ["something else"]}}))
    with pytest.raises(SavedModelError, match="other features"):
        load_model(tmp_path)


class Boom:
    """Runs code when unpickled."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("boom"),)


def test_weights_that_would_run_code_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_model(build(SPEC), SPEC, tmp_path / "model")
    torch.save({"layers.0.weight": Boom()}, tmp_path / "model" / "weights.pt")
    with pytest.raises(SavedModelError):
        load_model(tmp_path / "model")
    assert not (tmp_path / "boom").exists()


def test_predictions_are_keyed_by_identity_and_do_not_depend_on_the_batch_size(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", rows={"train": [20], "val": [5], "test": [30, 17]})
    model = build(SPEC)
    small = predict(model, dataset.files("test"), batch_size=7)
    large = predict(model, dataset.files("test"))
    assert small["entry"].to_pylist() == large["entry"].to_pylist() == list(range(25, 72))
    scores = np.stack(large["probability"].to_numpy())
    np.testing.assert_allclose(np.stack(small["probability"].to_numpy()), scores, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(scores.sum(axis=1), 1, rtol=1e-5)
    hlf = np.stack(pq.read_table(dataset.files("test")[0])["hlf"].to_numpy())
    np.testing.assert_allclose(scores[:30], probabilities(model, [hlf]), rtol=1e-5, atol=1e-7)


def test_an_evaluation_writes_predictions_metrics_and_plots(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", rows={"train": [20], "val": [5], "test": [60]})
    save_model(build(SPEC), SPEC, tmp_path / "model")
    out = tmp_path / "out"
    out.mkdir()
    metrics = evaluate(tmp_path / "model", dataset.files("test"), CLASSES, HISTORY, LABELS, out)
    assert metrics == json.loads((out / "metrics.json").read_text())
    assert metrics["num_events"] == pq.read_metadata(out / "predictions.parquet").num_rows == 60
    assert {path.name for path in (out / "plots").iterdir()} == {
        f"{name}.{kind}" for name in ("roc", "confusion", "scores", "learning_curve") for kind in ("png", "pdf")
    }


def test_an_evaluation_with_other_classes_is_refused(tmp_path: Path) -> None:
    save_model(build(SPEC), SPEC, tmp_path / "model")
    with pytest.raises(ModelError, match="was trained for the classes"):
        evaluate(tmp_path / "model", [], ["ttbar", "QCD", "W+jets"], HISTORY, LABELS, tmp_path)


def test_a_test_split_without_a_class_is_said(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path / "data", rows={"train": [20], "val": [5], "test": [2]})
    save_model(build(SPEC), SPEC, tmp_path / "model")
    with pytest.raises(UndefinedMetricError):
        evaluate(tmp_path / "model", dataset.files("test"), CLASSES, HISTORY, LABELS, tmp_path)


@pytest.mark.parametrize("words", ["50%", "MC #3", "run_", "10^", r"C:\\data", "$5 $6", "a_b", "<script>"])
def test_any_words_can_stand_on_plots(tmp_path: Path, words: str) -> None:
    figure = plot_confusion(np.eye(2), [words, "b"], PlotLabels(words, words, 13))
    save_figure(figure, tmp_path / "plot")


def test_numbers_of_an_evaluation_honour_event_weights() -> None:
    scores = np.array([[0.8, 0.2], [0.4, 0.6], [0.3, 0.7], [0.6, 0.4]], dtype=np.float32)
    weights = [1.0, 3.0, 1.0, 5.0]
    table = pa.table({"label": [0, 0, 1, 1], "weight": weights, "probability": list(scores)})
    metrics = measure(table, ["a", "b"])
    assert metrics["accuracy"]["value"] == pytest.approx((1 + 1) / 10)
    assert metrics["confusion"]["by_truth"] == [pytest.approx([1 / 4, 3 / 4]), pytest.approx([5 / 6, 1 / 6])]
    pairs = 1 * 1 + 1 * 5 + 3 * 1  # signal 'a' above background 'b'
    assert metrics["auc"]["a"]["value"] == pytest.approx(pairs / (4 * 6))


def test_roc_plots_have_signal_across_and_background_up_on_a_log_axis() -> None:
    curve = RocCurve(np.array([0, 0.5, 1.0]), np.array([0, 0.01, 1.0]))
    axes = plot_roc({"ttbar vs rest": curve}, LABELS).axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Signal efficiency", "Background efficiency")
    assert axes.get_yscale() == "log"
    drawn = axes.lines[0]
    assert (list(drawn.get_xdata()), list(drawn.get_ydata())) == ([0.5, 1.0], [0.01, 1.0])


def test_confusion_plots_have_the_truth_down() -> None:
    axes = plot_confusion(np.array([[0.9, 0.1], [0.3, 0.7]]), ["a", "b"], LABELS).axes[0]
    assert axes.get_xlabel() == "Predicted class"
    assert axes.get_ylabel().startswith("True class")
    texts = {(text.get_position()): text.get_text() for text in axes.texts}
    assert texts[1, 0] == "0.100"


def test_the_learning_curve_marks_the_epoch_that_was_kept() -> None:
    axes = plot_learning_curve(HISTORY, LABELS).axes[0]
    assert list(axes.lines[-1].get_xdata()) == [3]
