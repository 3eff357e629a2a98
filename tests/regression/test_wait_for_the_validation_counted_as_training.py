"""A worker reads the models of all others to validate; at the end of a short run all wait for it.

So the time per batch of AD-PSGD doubled from 32 workers to 64, and a claim about it was refuted.
"""

from __future__ import annotations

from training.settings import TrainSettings
from training.simulation.cluster import ClusterSettings
from training.studies.run_in_simulator import simulate_times
from training.studies.run_result import rates


def seconds_per_batch(workers: int) -> float:
    """Of 48 batches of 16 events in each of three epochs."""
    train = TrainSettings.model_validate(
        {"algorithm": "ad-psgd", "workers": workers, "batch_size": 16, "epochs": 3, "seed": 1}
    )
    cluster = ClusterSettings(step_seconds=4e-5, event_seconds=0.0)
    found = simulate_times([16 * 48] * workers, train, cluster, num_parameters=3000)
    return rates(found.records)["seconds_per_batch"]


def test_more_workers_take_no_more_time_for_a_batch_of_ad_psgd() -> None:
    few, many = (seconds_per_batch(workers) for workers in (8, 48))
    assert many < 1.2 * few
