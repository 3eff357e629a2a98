"""Which model is in use: better ones take the place, worse ones do not, and there is a way back."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import SAMPLES, small_config
from feature_datasets import write_dataset
from networks import made_network, made_spec
from rich.console import Console
from training_runs import make_spec

from features.dataset import FeatureDataset
from models.predict import rows_of
from models.saved_model import save_model
from pipeline.config import load_config
from pipeline.errors import ConfigError, MissingInputError, PromotionError
from pipeline.promoting import Promoter
from pipeline.registry import Registry
from pipeline.run_log import METRICS
from pipeline.store import StageStore

CLASSES = ["QCD", "ttbar", "W+jets"]


class Nights:
    """A run folder whose stages are published by hand: what is trained is up to the test."""

    def __init__(self, folder: Path) -> None:
        self.promoter = Promoter(load_config(str(small_config(folder, SAMPLES))), Console(quiet=True))
        self.run_dir = self.promoter.config.run_dir
        self.made: dict[str, str] = {}
        self.publish("ingest", {})
        store = StageStore(self.run_dir, "features")
        version = store.next_folder("ff" * 8)
        self.dataset = write_dataset(
            version, rows={"train": [40], "val": [8], "test": [300]}, separation=0.2, most_particles=2
        )
        self._commit(store, version, {})

    def publish(self, stage: str, counters: dict[str, Any]) -> None:
        store = StageStore(self.run_dir, stage)
        folder = store.next_folder("00" * 8)
        store.begin(folder)
        self._commit(store, folder, counters)

    def train(self, steps: int, *, seed: int = 1, networks: Sequence[str] = ("hlf",)) -> None:
        """A training of so many steps of Adam on all that there is to train on."""
        store = StageStore(self.run_dir, "train")
        folder = store.next_folder(f"{steps:08d}")
        store.begin(folder)
        (folder / "hlf").mkdir()
        make_spec(self.dataset, folder / "hlf").save(folder / "hlf" / "run.json")
        spec = made_spec("hlf")
        model = fitted(self.dataset, steps, seed)
        save_model(model, spec, folder / "hlf" / "model")
        self._commit(store, folder, {"networks": {name: {} for name in networks}})

    def promote(self, *, force: bool = False) -> tuple[bool, str]:
        (verdict,) = self.promoter.promote(force=force)
        return verdict.promoted, verdict.reason

    def in_use(self) -> str | None:
        """The training that the model in use comes from."""
        current = self.registry.current()
        return None if current is None else current.manifest["train"]

    @property
    def registry(self) -> StageStore:
        return Registry(self.run_dir, "hlf")

    def _commit(self, store: StageStore, folder: Path, counters: dict[str, Any]) -> None:
        made = {name: version for name, version in self.made.items() if name != store.stage}
        inputs = {name: {"name": name, "digest": version} for name, version in made.items()}
        fingerprint = {"inputs": inputs, "config": {}, "code": {}}
        times = {"created": "2026-01-01T00:00:00+00:00", "seconds": 1.0}
        manifest = {**times, "counters": counters, "fingerprint": fingerprint, "upstream": made}
        self.made[store.stage] = store.commit(folder, manifest).name


def fitted(dataset: FeatureDataset, steps: int, seed: int) -> Any:
    import pyarrow.parquet as pq

    model = made_network("hlf", seed=seed, dtype=torch.float32)
    table = pq.read_table(dataset.files("test")[0])
    # On the test events on purpose: it is the registry that is tested, and more steps must be better.
    hlf, labels = torch.tensor(rows_of(table, "hlf")), torch.tensor(table["label"].to_numpy())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(hlf), labels).backward()
        optimizer.step()
    return model


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    return Nights(tmp_path)


def test_the_first_model_is_put_in_use_as_it_is(nights: Nights) -> None:
    nights.train(5)
    assert nights.promote() == (True, "there was none in use")
    assert nights.in_use() == nights.made["train"]
    folder = nights.registry.current().folder  # type: ignore[union-attr]
    trained = nights.run_dir / "train" / nights.made["train"] / "hlf"
    assert (folder / "model" / "weights.pt").read_bytes() == (trained / "model" / "weights.pt").read_bytes()
    promoted, reason = nights.promote()
    assert not promoted
    assert "in use already" in reason


def test_a_better_model_takes_the_place_and_a_worse_one_does_not(nights: Nights) -> None:
    nights.train(5)
    nights.promote()
    first = nights.in_use()
    nights.train(200)
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
    kept = nights.registry.current().manifest["improvement"]  # type: ignore[union-attr]
    assert kept["value"] > kept["error"] > 0


def test_forced_a_worse_model_is_put_in_use_and_it_is_said(nights: Nights) -> None:
    for steps in (100, 5):
        nights.train(steps)
        promoted, reason = nights.promote(force=True)
        assert promoted
    assert "--force" in reason
    assert nights.in_use() == nights.made["train"]


def test_the_criterion_is_that_of_the_config(nights: Nights) -> None:
    nights.train(100)
    nights.promote()
    nights.train(110)
    config = nights.promoter.config
    strict = config.model_copy(update={"promote": config.promote.model_copy(update={"min_sigma": 50.0})})
    (verdict,) = Promoter(strict, Console(quiet=True)).promote()
    assert not verdict.promoted
    assert "by 50 standard errors" in verdict.reason


def test_a_rollback_brings_the_one_before_back_and_keeps_it(nights: Nights) -> None:
    nights.train(5)
    nights.promote()
    nights.train(200)
    nights.promote()
    withdrawn, current = nights.promoter.rollback("hlf")
    assert (withdrawn[:4], current[:4]) == ("0002", "0001")
    assert nights.registry.current().name == current  # type: ignore[union-attr]
    # The next night finds the same candidate, and leaves it.
    assert nights.promote() == (False, "it was rolled back; --force promotes it all the same")
    with pytest.raises(MissingInputError, match="nothing to go back to"):
        nights.promoter.rollback("hlf")
    assert nights.promote(force=True)[0]
    assert nights.in_use() == nights.made["train"]


def test_there_is_nothing_to_roll_back_to_at_first(nights: Nights) -> None:
    nights.train(5)
    nights.promote()
    with pytest.raises(MissingInputError, match="before the one in use"):
        nights.promoter.rollback("hlf")
    with pytest.raises(MissingInputError, match="nothing to go back to"):
        nights.promoter.rollback("particles")


def other_features(nights: Nights) -> None:
    """The model in use was trained on features of another definition."""
    path = nights.registry.current().folder / "model" / "model.json"  # type: ignore[union-attr]
    path.write_text(path.read_text().replace('"definitions": {}', '"definitions": {"isolation_cone": 0.4}'))


def damaged_weights(nights: Nights) -> None:
    path = nights.registry.current().folder / "model" / "weights.pt"  # type: ignore[union-attr]
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [(other_features, "cone 0.4 instead of not set"), (damaged_weights, "no readable model")],
)
def test_a_model_in_use_that_cannot_be_compared_stays_until_it_is_forced(
    nights: Nights, spoil: Callable[[Nights], None], why: str
) -> None:
    # It was an error each night, --force or not, and no later step of the night ran.
    nights.train(5)
    nights.promote()
    spoil(nights)
    nights.train(50)
    promoted, reason = nights.promote()
    assert not promoted
    assert reason.startswith("it cannot be compared with 0001-")
    assert why in reason
    assert reason.endswith("`promote --force` puts it in use all the same.")
    promoted, reason = nights.promote(force=True)
    assert promoted
    assert why in reason
    assert nights.in_use() == nights.made["train"]


def test_a_missing_pointer_is_set_to_the_newest_that_was_promoted(nights: Nights) -> None:
    # After its removal, which the message about a damaged one asks for, the next candidate was the first, and won.
    nights.train(5)
    nights.promote()
    nights.train(200)
    nights.promote()
    nights.promoter.rollback("hlf")
    nights.registry.pointer.write_text("")
    nights.train(1)
    with pytest.raises(PromotionError, match=r"current\.json or the version it names is damaged.*Remove"):
        nights.promote()
    nights.registry.pointer.unlink()
    promoted, reason = nights.promote()
    assert not promoted
    assert "higher than that of 0001" in reason
    assert nights.registry.current().name.startswith("0001")  # type: ignore[union-attr]


def test_one_network_that_cannot_be_promoted_does_not_keep_the_others_from_it(nights: Nights) -> None:
    nights.train(5, networks=["inclusive", "hlf"])
    verdicts = []
    with pytest.raises(PromotionError, match=r"^inclusive: "):
        verdicts.extend(nights.promoter.promote())
    assert [each.network for each in verdicts] == ["hlf"]
    assert nights.in_use() == nights.made["train"]
    metrics = (nights.run_dir / METRICS).read_text()
    assert 'hep_pipeline_stage_failed{stage="promote"} 1.0' in metrics
    assert 'hep_pipeline_model_promoted_timestamp_seconds{network="hlf"}' in metrics


def test_only_networks_can_be_rolled_back(nights: Nights) -> None:
    # A path led to the pointers of stages.
    nights.train(5)
    nights.promote()
    for name, near in (("../train", ""), ("hfl", "Did you mean 'hlf'")):
        with pytest.raises(ConfigError, match=f"no network '{name}'.*{near}"):
            nights.promoter.rollback(name)


def test_without_a_training_there_is_nothing_to_promote(nights: Nights) -> None:
    with pytest.raises(MissingInputError, match="needs the output of train"):
        nights.promote()


def test_what_was_promoted_and_withdrawn_is_in_the_log_of_the_run(nights: Nights) -> None:
    nights.train(5)
    nights.promote()
    nights.promote()
    nights.train(200)
    nights.promote()
    nights.promoter.rollback("hlf")
    lines = [json.loads(line) for line in nights.promoter.log.path.read_text().splitlines()]
    assert [line["event"] for line in lines] == [
        "network promoted", "network not promoted", "network promoted", "network rolled back"
    ]  # fmt: skip
    assert "in use already" in lines[1]["reason"]
    assert lines[2]["train"] == nights.made["train"]
    assert (lines[3]["withdrawn"][:4], lines[3]["in_use"][:4]) == ("0002", "0001")
