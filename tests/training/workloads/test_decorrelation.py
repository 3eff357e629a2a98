"""The term of the loss that decorrelates the score of the signal, and its way into gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from simulated import (
    CLUSTER,
    PARALLEL_METHODS,
    MemoryCheckpoints,
    settings,
    toy_network,
    toy_rows,
)
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from hep_studies.simulator.simulate import Simulated, simulate
from models.evaluation.discriminant import discriminant
from training.compiled.engines import compiled_engine
from training.decorrelate_settings import DecorrelateSettings
from training.errors import ColumnError
from training.flat_model import FlatModel
from training.loop.checkpoints import Checkpoint
from training.readers.batch import Batch
from training.readers.memory import MemoryRows
from training.workloads.decorrelation import MOST_EVENTS, Decorrelation, signal_scores
from training.workloads.distance_correlation import distance_correlation
from training.workloads.gradients import (
    TorchGradients,
    compute_batch_sums,
    compute_sums,
    make_gradients,
)

CLASSES = ["QCD", "ttbar", "W+jets"]
QCD, TTBAR, WJETS = range(3)


def random_batch(num_events: int = 60, *, seed: int = 1) -> Batch:
    """Events of three classes with four features; the spectators are two of these."""
    rng = np.random.default_rng(seed)
    inputs = torch.tensor(rng.normal(size=(num_events, 4)))
    labels = torch.tensor(rng.integers(0, 3, num_events))
    weights = torch.tensor(rng.uniform(0.5, 1.5, num_events))
    return Batch((inputs,), labels, weights, spectators=inputs[:, 1:3].clone())


def with_labels(batch: Batch, labels: Tensor) -> Batch:
    return Batch(batch.inputs, labels, batch.weights, batch.spectators)


def with_spectators(rows: MemoryRows) -> MemoryRows:
    """The toy rows, with one of their features as a spectator."""
    (features,) = rows.rows.inputs
    spectators = features[:, 1:2].clone()
    return MemoryRows(rows.rows._replace(spectators=spectators), rows.seed, rows.group_rows)


def decorrelate(**keys: Any) -> DecorrelateSettings:
    section = {"from": ["lepton_pt"], "strength": 10, "classes": ["QCD"], "signal": "ttbar"}
    return DecorrelateSettings.model_validate(section | keys)


@pytest.mark.parametrize("signals", [(TTBAR,), (TTBAR, WJETS)], ids=["one signal", "two signals"])
def test_the_score_is_the_discriminant_of_the_evaluation(signals: tuple[int, ...]) -> None:
    logits = torch.tensor(np.random.default_rng(1).normal(0, 5, (20, 3)))
    backgrounds = [label for label in range(3) if label not in signals]

    scores = signal_scores(logits, signals)

    probabilities = logits.softmax(dim=1).numpy()
    signal_shares = dict.fromkeys(signals, 1 / len(signals))
    background_shares = dict.fromkeys(backgrounds, 1 / len(backgrounds))
    expected = discriminant(probabilities, signal=signal_shares, fractions=background_shares)
    np.testing.assert_allclose(scores.numpy(), expected, atol=1e-12)


def test_the_term_adds_classes_and_columns_each_within_its_own_events() -> None:
    batch = random_batch()
    logits = torch.tensor(np.random.default_rng(2).normal(size=(60, 3)))
    decorrelation = Decorrelation(labels=(QCD, WJETS), signals=(TTBAR,), strength=3.0)

    term = decorrelation.term(logits, batch)

    assert batch.spectators is not None
    scores = signal_scores(logits, [TTBAR])
    expected = 0.0
    for label in (QCD, WJETS):
        in_class = batch.labels == label
        class_scores = scores[in_class]
        class_weights = batch.weights[in_class]
        for spectator in batch.spectators[in_class].unbind(dim=1):
            correlation = distance_correlation(class_scores, spectator, class_weights)
            expected += 3 * float(correlation)
    assert float(term) == pytest.approx(expected, abs=1e-12)


def test_negative_weights_leave_the_term_between_0_and_its_strength() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        inputs, labels, weights, spectators = random_batch(seed=seed)
        signs = torch.tensor(rng.choice([-1.0, 1.0], 60))
        logits = torch.tensor(rng.normal(size=(60, 3)))
        batch = Batch(inputs, labels, signs * weights, spectators)

        term = Decorrelation((QCD,), (TTBAR,), 1.0).term(logits, batch)

        assert 0 <= float(term) <= 2


def test_of_a_large_batch_only_the_first_events_of_a_class_count() -> None:
    num_events = MOST_EVENTS + 50
    all_qcd = torch.full((num_events,), QCD)
    batch = with_labels(random_batch(num_events), all_qcd)
    logits = torch.tensor(np.random.default_rng(3).normal(size=(num_events, 3)))
    decorrelation = Decorrelation((QCD,), (TTBAR,), 1.0)

    term = decorrelation.term(logits, batch)

    # The last events get no weight, so that they would not count anyway.
    weights = batch.weights.clone()
    weights[MOST_EVENTS:] = 0
    assert batch.spectators is not None
    scores = signal_scores(logits, [TTBAR])
    expected = 0.0
    for spectator in batch.spectators.unbind(dim=1):
        expected += float(distance_correlation(scores, spectator, weights))
    assert float(term) == pytest.approx(expected, abs=1e-12)


def loss_at(parameters: Tensor, module: nn.Module, batch: Batch, term: Decorrelation) -> float:
    """The loss as the papers define it, at some parameters of a network."""
    torch.nn.utils.vector_to_parameters(parameters, module.parameters())
    with torch.no_grad():
        logits = module(*batch.inputs)
        losses = nn.functional.cross_entropy(logits, batch.labels, reduction="none")
        mean_loss = (batch.weights * losses).mean()
        return float(mean_loss + term.term(logits, batch))


def test_a_network_with_a_compiled_kernel_gets_the_gradient_of_the_whole_loss() -> None:
    batch = random_batch()
    module = toy_network()
    term = Decorrelation((QCD,), (TTBAR,), 2.0)
    model = FlatModel(toy_network())
    assert compiled_engine(model.module) is not None

    gradients = make_gradients(model, term)
    gradients.compute(batch)

    assert isinstance(gradients, TorchGradients)
    start = parameters_to_vector(module.parameters()).detach().clone()
    for index in range(0, len(start), 5):
        step = torch.zeros_like(start)
        step[index] = 1e-6
        loss_above = loss_at(start + step, module, batch, term)
        loss_below = loss_at(start - step, module, batch, term)
        slope = (loss_above - loss_below) / 2e-6
        assert float(model.gradient[index]) == pytest.approx(slope, abs=1e-6)
    assert gradients.num_decorrelated == 1


def test_the_mean_loss_of_training_and_validation_has_the_term() -> None:
    batch = random_batch()
    model = FlatModel(toy_network())
    term = Decorrelation((QCD,), (TTBAR,), 2.0)
    with torch.no_grad():
        logits = model.module(*batch.inputs)
    gradients = make_gradients(model, term)

    gradients.compute(batch)

    expected = compute_sums(logits, batch.labels, batch.weights).mean_loss
    expected += float(term.term(logits, batch))
    assert gradients.pop_sums().mean_loss == pytest.approx(expected)
    assert compute_batch_sums(logits, batch, term).mean_loss == pytest.approx(expected)


def test_a_batch_without_events_of_the_class_has_the_gradient_of_the_cross_entropy() -> None:
    batch = random_batch()
    labels_without_qcd = torch.where(batch.labels == QCD, TTBAR, batch.labels)
    batch = with_labels(batch, labels_without_qcd)
    with_term = FlatModel(toy_network())
    without_term = FlatModel(toy_network())
    gradients = make_gradients(with_term, Decorrelation((QCD,), (TTBAR,), 2.0))

    gradients.compute(batch)
    TorchGradients(without_term).compute(batch)

    assert torch.equal(with_term.gradient, without_term.gradient)
    assert gradients.num_decorrelated == 0


@pytest.mark.parametrize(
    ("num_events", "num_weightless", "num_counted"),
    [(1, 0, 0), (2, 0, 0), (3, 0, 1), (3, 1, 0), (4, 1, 1)],
)
def test_steps_count_from_three_events_with_a_weight_since_two_are_always_correlated(
    num_events: int, num_weightless: int, num_counted: int
) -> None:
    inputs, _, weights, spectators = random_batch()
    labels = torch.full((60,), WJETS)
    labels[:num_events] = QCD
    weights[:num_weightless] = 0
    batch = Batch(inputs, labels, weights, spectators)
    with_term = FlatModel(toy_network())
    without_term = FlatModel(toy_network())
    gradients = make_gradients(with_term, Decorrelation((QCD,), (TTBAR,), 2.0))

    gradients.compute(batch)
    TorchGradients(without_term).compute(batch)

    assert gradients.num_decorrelated == num_counted
    # The term moves the model in the steps that count, and in no other.
    changes = with_term.gradient - without_term.gradient
    is_moved = float(changes.abs().max()) > 1e-10
    assert is_moved is bool(num_counted)


@pytest.mark.parametrize("method", PARALLEL_METHODS)
def test_every_method_trains_with_the_term(method: str) -> None:
    train = with_spectators(toy_rows(160))
    val = with_spectators(toy_rows(60, seed=1, groups=1))
    keys = dict(PARALLEL_METHODS[method])
    keys.pop("exchange", None)
    term = Decorrelation((QCD,), (TTBAR,), 5.0)
    run_settings = settings(**keys)

    plain = simulate(toy_network(), train, val, run_settings, CLUSTER)
    decorrelated = simulate(toy_network(), train, val, run_settings, CLUSTER, decorrelation=term)

    assert (plain.parameters != decorrelated.parameters).any(dim=1).all()
    for records in decorrelated.records:
        # A small batch may lack events of the class.
        num_decorrelated = sum(record["decorrelated_steps"] for record in records)
        num_steps = sum(record["steps"] for record in records)
        assert 0 < num_decorrelated <= num_steps


@pytest.mark.parametrize("position", [(0, 3), (1, 0)], ids=["within", "between"])
@pytest.mark.parametrize("method", ["ar-sgd", "d-psgd", "easgd together"])
def test_a_run_with_the_term_continues_from_a_checkpoint_bit_by_bit(
    method: str, position: tuple[int, int]
) -> None:
    train = with_spectators(toy_rows(160))
    val = with_spectators(toy_rows(60, seed=1, groups=1))
    run_settings = settings(**PARALLEL_METHODS[method], checkpoint_steps=3)
    term = Decorrelation((QCD,), (TTBAR,), 5.0)
    checkpoints = MemoryCheckpoints()

    def run(checkpoints: MemoryCheckpoints, resume: Checkpoint | None = None) -> Simulated:
        return simulate(
            toy_network(),
            train,
            val,
            run_settings,
            CLUSTER,
            decorrelation=term,
            files=checkpoints.files,
            resume=resume,
        )

    complete = run(checkpoints)
    resumed = run(MemoryCheckpoints(), resume=checkpoints.at(position))

    assert torch.equal(resumed.parameters, complete.parameters)
    for resumed_records, records in zip(resumed.records, complete.records, strict=True):
        for resumed_record, record in zip(resumed_records, records, strict=True):
            for key in ("train_loss", "val_loss", "decorrelated_steps"):
                assert resumed_record[key] == record[key], key


def test_a_training_with_the_term_leaves_less_correlation() -> None:
    train = with_spectators(toy_rows(320))
    val = with_spectators(toy_rows(300, seed=1, groups=1))
    run_settings = settings(workers=1, algorithm="sgd", batch_size=80, epochs=40)
    term = Decorrelation((QCD,), (TTBAR,), 10.0)

    plain = simulate(toy_network(), train, val, run_settings, CLUSTER)
    decorrelated = simulate(toy_network(), train, val, run_settings, CLUSTER, decorrelation=term)

    correlation = correlation_of(plain.parameters, val)
    remaining_correlation = correlation_of(decorrelated.parameters, val)
    assert remaining_correlation < 0.5 * correlation


def correlation_of(parameters: Tensor, rows: MemoryRows) -> float:
    """The squared distance correlation of the mean model of the workers."""
    module = toy_network()
    torch.nn.utils.vector_to_parameters(parameters.mean(dim=0), module.parameters())
    batch = next(rows.batches(len(rows)))
    decorrelation = Decorrelation((QCD,), (TTBAR,), 1.0)
    with torch.no_grad():
        logits = module(*batch.inputs)
        return float(decorrelation.term(logits, batch))


def test_classes_become_numbers() -> None:
    term = Decorrelation.from_settings(decorrelate(classes=["W+jets", "QCD"]), CLASSES)

    assert term == Decorrelation((WJETS, QCD), (TTBAR,), 10.0)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"classes": ["qcd"]}, "no class 'qcd', only QCD, ttbar, W.jets. Did you mean 'QCD'"),
        ({"signal": "top"}, "no class 'top'"),
        ({"signal": None}, "signal: name some of the classes"),
        ({"signal": CLASSES}, "but not all"),
    ],
)
def test_names_that_are_no_classes_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ColumnError, match=message):
        Decorrelation.from_settings(decorrelate(**keys), CLASSES)


def test_the_signal_of_the_evaluation_fills_an_empty_key_only() -> None:
    filled = decorrelate(signal=None).with_signals(["ttbar", "W+jets"])
    unchanged = decorrelate(signal="ttbar").with_signals(["QCD"])

    assert filled.signals == ["ttbar", "W+jets"]
    assert unchanged.signals == ["ttbar"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"from": []}, "at least 1 item"),
        ({"from": ["met", "met"]}, "from: met is given twice"),
        ({"classes": ["QCD", "QCD"]}, "classes: QCD is given twice"),
        ({"strength": 0}, "greater than 0"),
        ({"strength": math.inf}, "finite number"),
    ],
)
def test_settings_that_never_act_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decorrelate(**keys)
