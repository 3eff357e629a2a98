"""The variants of the thesis' tables and how they are trained."""

from __future__ import annotations

import pytest

from training.settings import TrainSettings
from training.studies.settings import CompareSettings
from training.studies.variants import ALL_VARIANTS, REFERENCE, TableColumn, Variant, timing_settings, train_settings

CHOSEN = CompareSettings(workers=4, tau=6, beta=0.5)


def made(key: str, base: TrainSettings | None = None) -> TrainSettings:
    return train_settings(base or TrainSettings(), CHOSEN, Variant.of(key), epochs=3, seed=5)


def test_there_are_the_seven_cells_of_the_tables_and_two_controls() -> None:
    assert [variant.key for variant in ALL_VARIANTS] == [
        "ar-sgd",
        "sgd",
        "ar-sgd-slowmo",
        "ad-psgd",
        "ad-psgd-slowmo",
        "ad-psgd-slowmo-no-avg",
        "swarm-sgd",
        "swarm-sgd-slowmo",
        "swarm-sgd-slowmo-no-avg",
    ]
    assert all(Variant.of(variant.key) == variant for variant in ALL_VARIANTS)
    assert Variant("swarm-sgd", TableColumn.SLOWMO).plain.key == "swarm-sgd"


def test_columns_are_slow_momentum_with_and_without_the_exact_average() -> None:
    assert made("ad-psgd").slowmo is None
    exact, without = made("ad-psgd-slowmo"), made("ad-psgd-slowmo-no-avg")
    assert exact.slowmo is not None
    assert (exact.slowmo.tau, exact.slowmo.beta, exact.slowmo.alpha) == (6, 0.5, 1.0)
    assert exact.slowmo_is_exact
    assert not without.slowmo_is_exact


def test_methods_differ_in_nothing_but_what_is_compared() -> None:
    differing = {"algorithm", "slowmo", "workers"}
    plain = made("ar-sgd").model_dump(exclude=differing)
    assert all(made(variant.key).model_dump(exclude=differing) == plain for variant in ALL_VARIANTS)
    assert {made(variant.key).workers for variant in ALL_VARIANTS if variant.key != "sgd"} == {4}
    assert made("sgd").workers == 1


def test_a_learning_rate_of_the_sweep_is_a_factor_on_that_of_train() -> None:
    base = TrainSettings(learning_rate=0.02)
    found = train_settings(base, CHOSEN, REFERENCE, epochs=3, seed=5, rate_factor=3.0)
    assert found.learning_rate == pytest.approx(0.06)
    assert found.model_dump(exclude={"learning_rate"}) == made("ar-sgd", base).model_dump(exclude={"learning_rate"})


def test_what_methods_share_comes_from_train_and_the_rest_does_not() -> None:
    base = TrainSettings(
        optimizer="sgd", learning_rate=0.3, momentum=0.9, optimizer_state="average", workers=2, epochs=99, batch_size=7,
        algorithm={"name": "swarm-sgd", "topology": "ring", "local_steps": 11, "network": "ib0", "exchange": "sockets"},
        slowmo={"exact_average": True}, cache="none", tensorboard=True,
    )  # fmt: skip
    found = made("swarm-sgd", base)
    assert (found.optimizer, found.learning_rate, found.momentum) == ("sgd", 0.3, 0.9)
    assert (found.workers, found.epochs, found.batch_size, found.seed) == (4, 3, 16, 5)
    assert found.algorithm.model_dump(exclude_unset=True) == {
        "name": "swarm-sgd", "local_steps": 3, "network": "ib0", "exchange": "sockets",
    }  # fmt: skip
    assert made("ar-sgd", base).algorithm.model_dump() == {"name": "ar-sgd"}
    assert (found.optimizer_state, found.tensorboard) == (None, False)
    assert (found.reader, found.cache) == ("arrow", "memory")


def test_timing_runs_are_of_bare_methods_and_may_have_one_worker() -> None:
    found = timing_settings(made("sgd"), workers=1, batch_size=64)
    assert (found.algorithm.name, found.workers, found.batch_size, found.slowmo) == ("sgd", 1, 64, None)


def test_a_model_cannot_be_compared_twice() -> None:
    with pytest.raises(ValueError, match="'hlf' is given twice"):
        CompareSettings(models=["hlf", "hlf"])
    with pytest.raises(ValueError, match=r"1\.0 is given twice"):
        CompareSettings(rate_factors=[1.0, 1.0])
