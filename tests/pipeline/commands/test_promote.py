"""Promotion: a better model replaces the model in use, and a bad one does not."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import SAMPLES, small_config
from published_by_hand import publish, record_as_written
from rich.console import Console
from trained_nights import TrainedNights

from hep_core.integrity import DamagedOutputError
from models.evaluation.bootstrap import Estimate
from models.evaluation.improvement import improvement
from models.evaluation.rates import Rates
from models.evaluation.scored_events import ScoredEvents
from pipeline.commands.promote import promote, rollback
from pipeline.config import load_config
from pipeline.errors import MissingInputError, PromotionError
from pipeline.run_folder import RunFolder
from pipeline.runs.log import METRICS
from pipeline.runs.seen_events import dataset_of
from pipeline.runs.store import StageStore
from pipeline.stages.evaluation_task import SelectionRates
from pipeline.terminal.progress import Bar


@pytest.fixture
def nights(tmp_path: Path) -> TrainedNights:
    return TrainedNights(tmp_path)


def with_settings(nights: TrainedNights, **settings: Any) -> RunFolder:
    """The run folder with other settings of `promote`."""
    config = nights.run_folder.config
    changed = config.promote.model_copy(update=settings)
    return RunFolder(config.model_copy(update={"promote": changed}), Console(quiet=True))


def record_files(nights: TrainedNights, stage: str) -> None:
    """Let the manifest of a stage name its files as they are now."""
    store = StageStore(nights.run_dir, stage)
    version = store.current()
    assert version is not None
    record_as_written(store, version)


def change_test_events(nights: TrainedNights, columns: Mapping[str, np.ndarray]) -> None:
    """Replace columns of the test events."""
    (path,) = nights.dataset.files("test")
    table = pq.read_table(path)
    for name, values in columns.items():
        index = table.schema.get_field_index(name)
        field = table.schema.field(index)
        table = table.set_column(index, field, pa.array(values, field.type))
    pq.write_table(table, path)
    record_files(nights, "features")


def test_the_first_model_is_put_in_use_as_it_is(nights: TrainedNights) -> None:
    with pytest.raises(MissingInputError, match="promote needs the output of train"):
        nights.promote()
    nights.train(5)

    assert nights.promote() == (True, "there was none in use")

    assert nights.training_in_use() == nights.training
    trained = nights.run_dir / "train" / nights.training / "hlf" / "model" / "weights.pt"
    promoted = nights.model_in_use().folder / "model" / "weights.pt"
    assert promoted.read_bytes() == trained.read_bytes()
    is_promoted, reason = nights.promote()
    assert not is_promoted
    assert "in use already" in reason


@pytest.mark.parametrize(
    ("at_least", "message"),
    [(None, "that of the best constant answer"), (0.9, r"is below promote\.at_least: 0\.9")],
)
def test_a_first_network_below_the_floor_is_promoted_only_by_force(
    nights: TrainedNights, at_least: float | None, message: str
) -> None:
    nights.train(0)
    run_folder = with_settings(nights, at_least=at_least)

    (refused,) = promote(run_folder)
    assert not refused.promoted
    assert re.search(
        rf"{message}.*`promote --force` puts the new one in use anyway\.$", refused.reason
    )
    assert nights.training_in_use() is None

    (forced,) = promote(run_folder, force=True)
    assert forced.promoted
    assert re.search(f"^--force, although its .*{message}", forced.reason)
    assert nights.training_in_use() == nights.training


def test_a_network_that_is_better_than_the_one_in_use_needs_the_floor_too(
    nights: TrainedNights,
) -> None:
    nights.train_and_promote(0)
    nights.train(200)

    (outcome,) = promote(with_settings(nights, at_least=1.0))

    assert not outcome.promoted
    assert "is below promote.at_least: 1" in outcome.reason
    is_promoted, _ = nights.promote()
    assert is_promoted


def publish_export(nights: TrainedNights) -> Path:
    """Publish an export of the training; returns its model."""
    store = nights.run_folder.store("export")
    folder = store.next_folder("ee" * 8)
    store.create(folder)
    model = folder / "hlf" / "model.onnx"
    model.parent.mkdir()
    model.write_text("exported")
    publish(nights.run_dir, "export", folder)
    return model


@pytest.mark.parametrize("stage", ["train", "export"])
def test_a_model_that_was_damaged_after_its_training_is_not_promoted(
    nights: TrainedNights, stage: str
) -> None:
    nights.train(5)
    damaged = publish_export(nights)
    if stage == "train":
        damaged = nights.run_dir / "train" / nights.training / "hlf" / "model" / "weights.pt"
    # The file can still be read.
    file_bytes = bytearray(damaged.read_bytes())
    file_bytes[len(file_bytes) // 2] ^= 1
    damaged.write_bytes(file_bytes)

    message = rf"{damaged.name} is not what was written.* run `python -m pipeline {stage}`"
    for force in (False, True):
        with pytest.raises(DamagedOutputError, match=message):
            nights.promote(force=force)
    assert nights.training_in_use() is None


def test_an_equal_training_is_promoted_with_the_onnx_of_the_first(
    nights: TrainedNights,
) -> None:
    nights.train(5)
    publish_export(nights)
    nights.train(5)
    nights.promote()
    # Another training has other networks.
    nights.train_and_promote(20)

    models = [nights.registry.folder / name for name in nights.registry.complete()]

    assert [(model / "model.onnx").exists() for model in models] == [True, False]


def test_a_better_model_replaces_the_model_in_use(nights: TrainedNights) -> None:
    nights.train_and_promote(5)
    nights.train(200)

    (refused,) = promote(with_settings(nights, min_sigma=1e6))
    assert not refused.promoted
    assert "by 1e+06 standard errors" in refused.reason

    is_promoted, reason = nights.promote()
    assert is_promoted
    assert "is lower than that of 0001" in reason
    assert "+-" in reason
    assert nights.training_in_use() == nights.training
    # The improvement is stored with the model.
    gain = nights.model_in_use().manifest.improvement
    assert gain is not None
    assert gain.value > gain.error > 0


def test_a_worse_model_does_not_replace_the_model_in_use(nights: TrainedNights) -> None:
    nights.train_and_promote(200)
    better = nights.training
    nights.train(1)

    is_promoted, reason = nights.promote()

    assert not is_promoted
    assert "is higher than that of 0001" in reason
    assert nights.training_in_use() == better


def test_slices_of_a_class_count_by_their_rates(
    nights: TrainedNights, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = nights.dataset.files("test")
    samples = np.array(["qcd", "ttbar", "wjets"])[pq.read_table(path)["label"].to_numpy()]
    is_even = np.arange(len(samples)) % 2 == 0
    samples = np.where((samples == "qcd") & is_even, "hard", samples)
    change_test_events(nights, {"sample": samples})
    values = {"hard": 1.0, "qcd": 999.0, "ttbar": 5.0, "wjets": 7.0}
    rates = Rates(
        {name: Estimate(value, 0.0) for name, value in values.items()},
        {"hard": 0, "qcd": 0, "ttbar": 1, "wjets": 2},
    )
    known_rates = SelectionRates(rates)
    monkeypatch.setattr("pipeline.stages.evaluation_task.rates_of_run", lambda *_: known_rates)
    compared: list[ScoredEvents] = []

    def record_events(old: ScoredEvents, new: ScoredEvents) -> Estimate:
        compared.extend([old, new])
        return improvement(old, new)

    monkeypatch.setattr("pipeline.commands.promote.improvement", record_events)
    nights.train_and_promote(5, 20)

    assert len(compared) == 2
    for events in compared:
        hard_weight = events.weights[events.samples == "hard"].sum()
        qcd_weight = events.weights[events.labels == 0].sum()
        assert hard_weight == pytest.approx(qcd_weight / 1000)


def test_a_class_whose_weights_cancel_does_not_bar_a_better_model(nights: TrainedNights) -> None:
    (path,) = nights.dataset.files("test")
    is_wjets = pq.read_table(path)["label"].to_numpy() == 2
    weights = np.ones(len(is_wjets))
    weights[np.argmax(is_wjets)] = 1 - is_wjets.sum()
    change_test_events(nights, {"weight": weights})
    nights.train_and_promote(5)
    nights.train(200)

    is_promoted, reason = nights.promote()

    assert is_promoted, reason
    assert f"on {(~is_wjets).sum()} test events is lower than that of 0001" in reason


def test_the_progress_of_a_comparison_ends_at_its_total(
    nights: TrainedNights, monkeypatch: pytest.MonkeyPatch
) -> None:
    bars: list[Bar] = []

    def record_bar(*arguments: Any) -> Bar:
        bars.append(Bar(*arguments))
        return bars[-1]

    monkeypatch.setattr("pipeline.commands.promote.Bar", record_bar)
    nights.train_and_promote(5, 200)

    # Both models predict all test events.
    assert bars[-1]._done == bars[-1]._total == 2 * nights.dataset.num_rows("test")


def test_a_network_that_cannot_be_promoted_does_not_stop_the_others(
    nights: TrainedNights,
) -> None:
    nights.train(5, networks=["inclusive", "hlf"])

    outcomes = []
    with pytest.raises(PromotionError, match=r"^inclusive: "):
        outcomes.extend(promote(nights.run_folder))

    assert [outcome.network for outcome in outcomes] == ["hlf"]
    assert nights.training_in_use() == nights.training
    metrics = (nights.run_dir / METRICS).read_text()
    run = f'run_dir="{nights.run_dir}"'
    assert f'hep_pipeline_stage_failed{{{run},stage="promote"}} 1.0' in metrics
    assert f'hep_pipeline_model_promoted_timestamp_seconds{{network="hlf",{run}}}' in metrics


def test_a_model_with_unknown_training_events_is_refused_unless_forced(
    nights: TrainedNights,
) -> None:
    nights.train(5)
    (nights.run_dir / "train" / nights.training / "hlf" / "run.json").unlink()
    record_files(nights, "train")

    message = r"hlf: the training events of hlf are unknown.*Train again with `train --force`"
    with pytest.raises(PromotionError, match=message):
        nights.promote()
    assert nights.training_in_use() is None

    is_promoted, _ = nights.promote(force=True)
    assert is_promoted
    nights.train(200)
    is_promoted, reason = nights.promote()
    assert not is_promoted
    assert "cannot be compared with 0001" in reason
    in_use = nights.model_in_use().name
    assert f"the training events of {in_use} are unknown" in reason
    # Another training does not help here.
    assert "Train again" not in reason
    assert reason.endswith("gone or damaged. `promote --force` puts the new one in use anyway.")


def test_a_model_of_other_code_of_a_plugin_is_not_promoted(nights: TrainedNights) -> None:
    nights.dataset._replace(plugin_code={"feature own": "now"}).save(columns={})
    record_files(nights, "features")
    nights.train(5, plugin_code={"feature own": "before"})

    with pytest.raises(PromotionError, match="the training of hlf used other code of the plugin"):
        nights.promote()

    nights.train(5, plugin_code={"feature own": "now"})
    assert nights.promote()[0]


def test_a_model_in_use_of_other_code_of_a_plugin_stays_until_forced(
    nights: TrainedNights,
) -> None:
    nights.train_and_promote(5)
    nights.train(5, plugin_code={"feature own": "before"})
    nights.promote(force=True)
    nights.dataset._replace(plugin_code={"feature own": "now"}).save(columns={})
    record_files(nights, "features")
    nights.train(200, plugin_code={"feature own": "now"})

    is_promoted, reason = nights.promote()

    assert not is_promoted
    assert f"the training of {nights.model_in_use().name} used other code" in reason
    # The candidate is of the code of now; making it again changes nothing.
    assert "again" not in reason
    assert reason.endswith("(feature own). `promote --force` puts the new one in use anyway.")
    assert nights.promote(force=True)[0]


def test_a_model_in_use_knows_its_training_events_after_a_move_of_the_run_folder(
    nights: TrainedNights, tmp_path: Path
) -> None:
    nights.train_and_promote(5)
    moved = tmp_path / "moved"
    nights.run_dir.rename(moved)

    (model,) = (moved / "registry" / "hlf").glob("0001-*")

    assert dataset_of(model) == moved / "features" / nights.dataset.folder.name


@pytest.mark.parametrize(
    "command",
    [lambda folder: rollback(folder, "hlf"), lambda folder: list(promote(folder))],
    ids=["rollback", "promote"],
)
def test_a_refused_promotion_makes_no_run_folder(
    tmp_path: Path, command: Callable[[RunFolder], object]
) -> None:
    run_folder = RunFolder(load_config(str(small_config(tmp_path, SAMPLES))), Console(quiet=True))

    with pytest.raises(MissingInputError):
        command(run_folder)

    assert not run_folder.config.run_dir.exists()
