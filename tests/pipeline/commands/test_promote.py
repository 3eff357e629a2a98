"""The model in use: better models replace it, and a rollback restores the previous one."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import SAMPLES, small_config
from published_by_hand import publish, record_as_written
from rich.console import Console
from trained_nights import TrainedNights

from hep_core.integrity import DamagedOutputError, with_seal
from models.evaluation.bootstrap import Estimate
from models.evaluation.improvement import improvement
from models.evaluation.rates import Rates
from models.evaluation.scored_events import ScoredEvents
from pipeline.commands.promote import promote, rollback
from pipeline.config import load_config
from pipeline.errors import ConfigError, MissingInputError, PromotionError
from pipeline.run_folder import RunFolder
from pipeline.runs.log import METRICS
from pipeline.runs.outputs import changed_files
from pipeline.runs.seen_events import dataset_of
from pipeline.runs.store import StageStore
from pipeline.terminal.progress import Bar


@pytest.fixture
def nights(tmp_path: Path) -> TrainedNights:
    return TrainedNights(tmp_path)


def test_the_first_model_is_put_in_use_as_it_is(nights: TrainedNights) -> None:
    with pytest.raises(MissingInputError, match="promote needs the output of train"):
        nights.promote()
    nights.train(5)
    assert nights.promote() == (True, "there was none in use")
    assert nights.in_use() == nights.made["train"]
    folder = nights.registry.current().folder  # type: ignore[union-attr]
    trained = nights.run_dir / "train" / nights.made["train"] / "hlf"
    assert (folder / "model" / "weights.pt").read_bytes() == (
        trained / "model" / "weights.pt"
    ).read_bytes()
    promoted, reason = nights.promote()
    assert not promoted
    assert "in use already" in reason


def with_floor(nights: TrainedNights, at_least: float | None) -> RunFolder:
    config = nights.run_folder.config
    return RunFolder(
        config.model_copy(
            update={"promote": config.promote.model_copy(update={"at_least": at_least})}
        ),
        Console(quiet=True),
    )


@pytest.mark.parametrize(
    ("at_least", "message"),
    [(None, "that of the best constant answer"), (0.9, r"is below promote\.at_least: 0\.9")],
)
def test_a_first_network_below_the_floor_is_promoted_only_by_force(
    nights: TrainedNights, at_least: float | None, message: str
) -> None:
    nights.train(0)
    run_folder = with_floor(nights, at_least)
    (verdict,) = promote(run_folder)
    assert not verdict.promoted
    assert re.search(rf"{message}.*`promote --force` puts it in use anyway\.$", verdict.reason)
    assert nights.in_use() is None
    (verdict,) = promote(run_folder, force=True)
    assert verdict.promoted
    assert re.search(f"^--force, although its .*{message}", verdict.reason)
    assert nights.in_use() == nights.made["train"]


def test_a_network_that_is_better_than_the_one_in_use_needs_the_floor_too(
    nights: TrainedNights,
) -> None:
    nights.promoted(0)
    nights.train(200)
    (verdict,) = promote(with_floor(nights, 1.0))
    assert not verdict.promoted
    assert "is below promote.at_least: 1" in verdict.reason
    assert nights.promote()[0]


def export(nights: TrainedNights) -> Path:
    """Publish an export of the training; returns its model."""
    store = nights.run_folder.store("export")
    folder = store.next_folder("ee" * 8)
    store.create(folder)
    (folder / "hlf").mkdir()
    (folder / "hlf" / "model.onnx").write_text("exported")
    publish(nights.run_dir, "export", folder)
    return folder / "hlf" / "model.onnx"


@pytest.mark.parametrize("stage", ["train", "export"])
def test_a_model_that_was_damaged_after_its_training_is_not_promoted(
    nights: TrainedNights, stage: str
) -> None:
    nights.train(5)
    damaged = export(nights)
    if stage == "train":
        damaged = nights.run_dir / "train" / nights.made["train"] / "hlf" / "model" / "weights.pt"
    file_bytes = bytearray(damaged.read_bytes())
    # The file can still be read.
    file_bytes[len(file_bytes) // 2] ^= 1
    damaged.write_bytes(file_bytes)
    message = rf"{damaged.name} is not what was written.* run `python -m pipeline {stage}`"
    for force in (False, True):
        with pytest.raises(DamagedOutputError, match=message):
            nights.promote(force=force)
    assert nights.in_use() is None


def test_an_equal_training_is_promoted_with_the_onnx_of_the_first(
    nights: TrainedNights,
) -> None:
    nights.train(5)
    export(nights)
    nights.train(5)
    assert nights.promote()[0]
    # Another training has other networks.
    nights.train(20)
    assert nights.promote()[0]
    exported = [
        (nights.registry.folder / name / "model.onnx").exists()
        for name in nights.registry.complete()
    ]
    assert exported == [True, False]


def test_a_better_model_replaces_the_model_in_use_and_a_worse_one_does_not(
    nights: TrainedNights,
) -> None:
    nights.promoted(5)
    first = nights.in_use()
    nights.train(200)
    config = nights.run_folder.config
    strict = config.model_copy(
        update={"promote": config.promote.model_copy(update={"min_sigma": 1e6})}
    )
    (verdict,) = promote(RunFolder(strict, Console(quiet=True)))
    assert not verdict.promoted
    assert "by 1e+06 standard errors" in verdict.reason
    promoted, reason = nights.promote()
    assert promoted
    assert "is lower than that of 0001" in reason
    assert "+-" in reason
    better = nights.in_use()
    assert better != first
    nights.train(1)
    promoted, reason = nights.promote()
    assert not promoted
    assert "is higher than that of 0002" in reason
    assert nights.in_use() == better
    # The improvement is kept with the model.
    model = nights.registry.current()
    assert model is not None
    assert model.manifest.improvement is not None
    assert model.manifest.improvement.value > model.manifest.improvement.error > 0


def test_slices_of_a_class_count_by_their_rates(
    nights: TrainedNights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rates of the samples say how much each counts, as in `evaluate`."""
    (path,) = nights.dataset.files("test")
    table = pq.read_table(path)
    samples = np.array(["qcd", "ttbar", "wjets"])[table["label"].to_numpy()]
    samples[(samples == "qcd") & (np.arange(len(samples)) % 2 == 0)] = "hard"
    field_index = table.schema.get_field_index("sample")
    pq.write_table(
        table.set_column(field_index, table.schema.field(field_index), pa.array(samples)), path
    )
    features = StageStore(nights.run_dir, "features").current()
    assert features is not None
    record_as_written(StageStore(nights.run_dir, "features"), features)
    rates = {"hard": (0, 1.0), "qcd": (0, 999.0), "ttbar": (1, 5.0), "wjets": (2, 7.0)}
    labels = {name: label for name, (label, _) in rates.items()}
    expected = Rates({name: Estimate(rate, 0.0) for name, (_, rate) in rates.items()}, labels)
    monkeypatch.setattr("pipeline.stages.evaluation_task.rates_of_run", lambda *_: expected)
    monkeypatch.setattr(
        "pipeline.commands.promote.rates_of_run", lambda *_: expected, raising=False
    )
    compared: list[ScoredEvents] = []

    def noted(state_before: ScoredEvents, state_after: ScoredEvents) -> Estimate:
        compared.extend([state_before, state_after])
        return improvement(state_before, state_after)

    monkeypatch.setattr("pipeline.commands.promote.improvement", noted)
    nights.promoted(5, 20)
    for events in compared:
        ours = events.labels == 0
        assert events.weights[events.samples == "hard"].sum() == pytest.approx(
            events.weights[ours].sum() / 1000
        )
    assert len(compared) == 2


def test_a_class_that_measures_nothing_does_not_keep_a_better_model_out(
    nights: TrainedNights,
) -> None:
    (path,) = nights.dataset.files("test")
    table = pq.read_table(path)
    is_cancelled = table["label"].to_numpy() == 2
    weights = np.ones(len(is_cancelled), np.float32)
    weights[np.flatnonzero(is_cancelled)[0]] = 1 - is_cancelled.sum()
    field_index = table.schema.get_field_index("weight")
    field = table.schema.field(field_index)
    pq.write_table(table.set_column(field_index, field, pa.array(weights, field.type)), path)
    features = StageStore(nights.run_dir, "features").current()
    assert features is not None
    record_as_written(StageStore(nights.run_dir, "features"), features)
    nights.promoted(5)
    nights.train(200)
    promoted, reason = nights.promote()
    assert promoted, reason
    assert f"on {(~is_cancelled).sum()} test events is lower than that of 0001" in reason


def test_the_progress_of_a_comparison_ends_at_its_total(
    nights: TrainedNights, monkeypatch: pytest.MonkeyPatch
) -> None:
    bars: list[Bar] = []

    def noted(console: Console, label: str, unit: str, total: int) -> Bar:
        bars.append(Bar(console, label, unit, total))
        return bars[-1]

    monkeypatch.setattr("pipeline.commands.promote.Bar", noted)
    nights.promoted(5, 200)
    # Both models predict all test events.
    assert bars[-1]._done == bars[-1]._total == 2 * nights.dataset.num_rows("test")


def other_features(nights: TrainedNights) -> None:
    """The model in use was trained on features of another definition."""
    version = nights.registry.current()
    assert version is not None
    path = version.folder / "model" / "model.json"
    path.write_text(
        json.dumps(
            with_seal(json.loads(path.read_text()) | {"definitions": {"isolation_cone": 0.4}})
        )
    )
    record_as_written(nights.registry, version)


def damaged_weights(nights: TrainedNights) -> None:
    path = nights.registry.current().folder / "model" / "weights.pt"  # type: ignore[union-attr]
    path.write_bytes(b"")


def no_model(nights: TrainedNights) -> None:
    shutil.rmtree(nights.registry.current().folder / "model")  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (other_features, "cone 0.4 instead of 0.3"),
        (damaged_weights, "is not what was written: its content is another"),
        (no_model, "is not what was written: it is gone"),
    ],
)
def test_a_model_in_use_that_cannot_be_compared_stays_until_it_is_forced(
    nights: TrainedNights, spoil: Callable[[TrainedNights], None], why: str
) -> None:
    # It was an error each night, --force or not, and no later step of the night ran.
    nights.promoted(5)
    spoil(nights)
    if spoil is not other_features:
        # It was called in use already.
        promoted, reason = nights.promote()
        assert promoted
        assert "the same model, were gone or changed" in reason
        current = nights.registry.current()
        assert current is not None
        assert not changed_files(current.folder, current.files)
        assert "in use already" in nights.promote()[1]
        spoil(nights)
    nights.train(50)
    promoted, reason = nights.promote()
    assert not promoted
    assert reason.startswith("it cannot be compared with 000")
    assert why in reason
    assert reason.endswith("`promote --force` puts it in use anyway.")
    promoted, reason = nights.promote(force=True)
    assert promoted
    assert why in reason
    assert nights.in_use() == nights.made["train"]


def test_a_missing_pointer_is_set_to_the_newest_promoted_model(nights: TrainedNights) -> None:
    # After its removal, which the message about a damaged one asks for, the next candidate was the
    # first, and won.
    nights.promoted(5, 200)
    nights.registry.pointer.unlink()
    assert nights.registry.recovered().name.startswith("0002")  # type: ignore[union-attr]
    rollback(nights.run_folder, "hlf")
    nights.registry.pointer.write_text("")
    nights.train(1)
    with pytest.raises(PromotionError, match=r"current\.json is damaged: it is no JSON.*Remove"):
        nights.promote()
    nights.registry.pointer.unlink()
    promoted, reason = nights.promote()
    assert not promoted
    assert "higher than that of 0001" in reason
    assert nights.registry.current().name.startswith("0001")  # type: ignore[union-attr]


def test_a_network_that_cannot_be_promoted_does_not_stop_the_others(
    nights: TrainedNights,
) -> None:
    nights.train(5, networks=["inclusive", "hlf"])
    verdicts = []
    with pytest.raises(PromotionError, match=r"^inclusive: "):
        verdicts.extend(promote(nights.run_folder))
    assert [verdict.network for verdict in verdicts] == ["hlf"]
    assert nights.in_use() == nights.made["train"]
    metrics = (nights.run_dir / METRICS).read_text()
    run = f'run_dir="{nights.run_dir}"'
    assert f'hep_pipeline_stage_failed{{{run},stage="promote"}} 1.0' in metrics
    assert f'hep_pipeline_model_promoted_timestamp_seconds{{network="hlf",{run}}}' in metrics


def test_a_model_with_unknown_training_events_is_refused_unless_forced(
    nights: TrainedNights,
) -> None:
    nights.train(5)
    trained = StageStore(nights.run_dir, "train").current()
    assert trained is not None
    (trained.folder / "hlf" / "run.json").unlink()
    record_as_written(StageStore(nights.run_dir, "train"), trained)
    with pytest.raises(
        PromotionError, match=r"hlf: the training events of hlf are unknown.*promote --force"
    ):
        nights.promote()
    assert nights.in_use() is None
    assert nights.promote(force=True)[0]
    nights.train(200)
    promoted, reason = nights.promote()
    assert not promoted
    assert "cannot be compared with 0001" in reason
    assert "the training events of in-use are unknown" in reason


def test_a_model_in_use_knows_its_training_events_after_a_move_of_the_run_folder(
    nights: TrainedNights, tmp_path: Path
) -> None:
    nights.promoted(5)
    nights.run_dir.rename(tmp_path / "moved")
    (version,) = (tmp_path / "moved" / "registry" / "hlf").glob("0001-*")
    assert dataset_of(version) == tmp_path / "moved" / "features" / nights.dataset.folder.name


def test_a_rollback_restores_the_previous_model(nights: TrainedNights) -> None:
    nights.promoted(5, 20)
    nights.train(200)
    assert nights.promote(force=True)[0]
    withdrawn, current = rollback(nights.run_folder, "hlf")
    assert (withdrawn[:4], current[:4]) == ("0003", "0002")
    assert nights.registry.current().name == current  # type: ignore[union-attr]
    # The next night finds the same candidate, and leaves it.
    assert nights.promote() == (False, "it was rolled back; --force promotes it anyway")
    withdrawn, current = rollback(nights.run_folder, "hlf")
    assert (withdrawn[:4], current[:4]) == ("0002", "0001")
    with pytest.raises(MissingInputError, match="nothing to roll back to"):
        rollback(nights.run_folder, "hlf")
    assert nights.promote(force=True)[0]
    assert nights.in_use() == nights.made["train"]


def test_a_rollback_after_a_repair_skips_the_damaged_files(nights: TrainedNights) -> None:
    nights.promoted(5, 200)
    weights = nights.registry.current().folder / "model" / "weights.pt"  # type: ignore[union-attr]
    weights.write_bytes(b"")
    assert nights.promote()[0]
    withdrawn, current = rollback(nights.run_folder, "hlf")
    assert (withdrawn[:4], current[:4]) == ("0003", "0001")
    # Nor does the damaged version of the withdrawn model come back without a pointer.
    nights.registry.pointer.unlink()
    assert nights.promote() == (False, "it was rolled back; --force promotes it anyway")
    assert nights.registry.current().name == current  # type: ignore[union-attr]
    with pytest.raises(MissingInputError, match="nothing to roll back to"):
        rollback(nights.run_folder, "hlf")


def test_only_networks_can_be_rolled_back(nights: TrainedNights) -> None:
    # A path led to the pointers of stages.
    nights.promoted(5)
    for name, near in (("../train", ""), ("hfl", "Did you mean 'hlf'")):
        with pytest.raises(ConfigError, match=f"no network '{name}'.*{near}"):
            rollback(nights.run_folder, name)


@pytest.mark.parametrize(
    "command", [lambda each: rollback(each, "hlf"), lambda each: list(promote(each))]
)
def test_a_refused_promotion_makes_no_run_folder(
    tmp_path: Path, command: Callable[[RunFolder], object]
) -> None:
    run_folder = RunFolder(load_config(str(small_config(tmp_path, SAMPLES))), Console(quiet=True))
    with pytest.raises(MissingInputError):
        command(run_folder)
    assert not run_folder.config.run_dir.exists()
