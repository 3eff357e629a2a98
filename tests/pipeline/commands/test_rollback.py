"""The model in use: damage, a missing pointer, and the way back to the model before it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from published_by_hand import record_as_written
from trained_nights import TrainedNights

from hep_core.integrity import with_seal
from pipeline.commands.clean import clean
from pipeline.commands.promote import rollback
from pipeline.errors import ConfigError, MissingInputError, PromotionError
from pipeline.runs.outputs import changed_files

ROLLED_BACK = (False, "it was rolled back; --force promotes it anyway")


@pytest.fixture
def nights(tmp_path: Path) -> TrainedNights:
    return TrainedNights(tmp_path)


def roll_back(nights: TrainedNights) -> tuple[str, str]:
    """The numbers of the withdrawn model and of the model that is in use again."""
    withdrawn, current = rollback(nights.run_folder, "hlf")
    assert nights.model_in_use().name == current
    return withdrawn[:4], current[:4]


def with_other_features(nights: TrainedNights) -> None:
    """Let the model in use be one that was trained on features of another definition."""
    model = nights.model_in_use()
    path = model.folder / "model" / "model.json"
    description = json.loads(path.read_text()) | {"definitions": {"isolation_cone": 0.4}}
    path.write_text(json.dumps(with_seal(description)))
    record_as_written(nights.registry, model)


def empty_weights(nights: TrainedNights) -> None:
    (nights.model_in_use().folder / "model" / "weights.pt").write_bytes(b"")


def remove_model(nights: TrainedNights) -> None:
    shutil.rmtree(nights.model_in_use().folder / "model")


@pytest.mark.parametrize(
    ("damage", "cause"),
    [
        (with_other_features, "cone 0.4 instead of 0.3"),
        (empty_weights, "is not what was written: its content is another"),
        (remove_model, "is not what was written: it is gone"),
    ],
)
def test_a_model_in_use_that_cannot_be_compared_stays_until_another_is_forced(
    nights: TrainedNights, damage: Callable[[TrainedNights], None], cause: str
) -> None:
    nights.train_and_promote(5)
    damage(nights)
    nights.train(50)

    is_promoted, reason = nights.promote()
    assert not is_promoted
    assert reason.startswith("it cannot be compared with 0001")
    assert cause in reason
    assert reason.endswith("`promote --force` puts the new one in use anyway.")

    is_promoted, reason = nights.promote(force=True)
    assert is_promoted
    assert cause in reason
    assert nights.training_in_use() == nights.training


@pytest.mark.parametrize("damage", [empty_weights, remove_model])
def test_damaged_files_of_the_model_in_use_are_replaced_by_those_of_its_training(
    nights: TrainedNights, damage: Callable[[TrainedNights], None]
) -> None:
    nights.train_and_promote(5)
    damage(nights)

    is_promoted, reason = nights.promote()

    assert is_promoted
    assert "the same model, were gone or changed" in reason
    model = nights.model_in_use()
    assert not changed_files(model.folder, model.files)
    _, reason = nights.promote()
    assert "in use already" in reason


def test_a_missing_pointer_is_set_to_the_newest_promoted_model(nights: TrainedNights) -> None:
    nights.train_and_promote(5, 200)
    nights.registry.pointer.unlink()

    recovered = nights.registry.recovered()

    assert recovered is not None
    assert recovered.name.startswith("0002")


def test_a_candidate_is_compared_with_the_recovered_model(nights: TrainedNights) -> None:
    nights.train_and_promote(5, 200)
    roll_back(nights)
    nights.registry.pointer.write_text("")
    nights.train(1)
    with pytest.raises(PromotionError, match=r"current\.json is damaged: it is no JSON.*Remove"):
        nights.promote()

    nights.registry.pointer.unlink()
    is_promoted, reason = nights.promote()

    assert not is_promoted
    assert "higher than that of 0001" in reason
    assert nights.model_in_use().name.startswith("0001")


def test_a_rollback_restores_the_previous_model(nights: TrainedNights) -> None:
    nights.train_and_promote(5, 20)
    nights.train(200)
    nights.promote(force=True)

    assert roll_back(nights) == ("0003", "0002")
    # The next night finds the same candidate, and leaves it.
    assert nights.promote() == ROLLED_BACK

    assert roll_back(nights) == ("0002", "0001")
    with pytest.raises(MissingInputError, match="nothing to roll back to"):
        roll_back(nights)

    is_promoted, _ = nights.promote(force=True)
    assert is_promoted
    assert nights.training_in_use() == nights.training


def test_a_rollback_after_a_repair_skips_the_damaged_files(nights: TrainedNights) -> None:
    nights.train_and_promote(5, 200)
    empty_weights(nights)
    nights.promote()

    assert roll_back(nights) == ("0003", "0001")

    # Nor does the damaged version of the withdrawn model come back without a pointer.
    nights.registry.pointer.unlink()
    assert nights.promote() == ROLLED_BACK
    assert nights.model_in_use().name.startswith("0001")
    with pytest.raises(MissingInputError, match="nothing to roll back to"):
        roll_back(nights)


def test_after_clean_and_rollback_a_better_network_is_promoted(nights: TrainedNights) -> None:
    # The networks of the last nights are worse than that of the second, and are not promoted.
    for steps in (5, 50, 1, 2):
        nights.make_features()
        nights.train_and_promote(steps)
        clean(nights.run_folder, 2)
    assert roll_back(nights) == ("0002", "0001")
    nights.make_features()
    nights.train(200)

    is_promoted, reason = nights.promote()

    assert is_promoted, reason
    assert "lower than that of 0001" in reason


@pytest.mark.parametrize(("name", "advice"), [("../train", ""), ("hfl", "Did you mean 'hlf'")])
def test_only_networks_can_be_rolled_back(nights: TrainedNights, name: str, advice: str) -> None:
    nights.train_and_promote(5)

    with pytest.raises(ConfigError, match=f"no network '{name}'.*{advice}"):
        rollback(nights.run_folder, name)
