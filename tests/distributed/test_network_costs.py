"""The cost model against messages on a real network: TCP between hosts with a delay and a rate.

The ranks only communicate, and their sockets sleep while they wait, so that hosts may share cores.
(Ranks in an all-reduce of MPI wait in a loop: with more ranks than cores, their time is that of the
scheduler.)
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from network_hosts import Network, network, reason_against_hosts

from hep_studies.time_checks import fit_link, predicted_seconds
from training.launching.message_probe import ALL_REDUCE, PUSH, Measurement
from training.launching.mpirun import rank_command, rank_environment
from training.settings import TrainSettings

pytestmark = [
    pytest.mark.minutes,
    pytest.mark.distributed,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        bool(reason_against_hosts()), reason=reason_against_hosts() or "all is here"
    ),
]

#: One way [s], and bits per second.
DELAY, RATE = 0.02, 5e7
SIZES = (64, 8192, 32_768)
#: The largest number of workers, and the size in the middle, are predicted.
WORKERS = (2, 4, 8)
MOST_ERROR = 0.25


def is_fitted(measurement: Measurement) -> bool:
    """Whether a measurement calibrates the model; the others check it."""
    return (
        measurement.operation != PUSH
        and measurement.workers < WORKERS[-1]
        and measurement.nbytes != SIZES[1]
    )


def all_reduces(between: Network, algorithm: str) -> list[Measurement]:
    """All-reduces by plain sockets."""
    size, medians = len(between.addresses), between.messages(algorithm, SIZES)
    return [
        Measurement(ALL_REDUCE, size, nbytes, max(median[str(nbytes)] for median in medians))
        for nbytes in SIZES
    ]


def averages_and_pushes(between: Network) -> list[Measurement]:
    """Averages and pushes as the methods make them."""
    size = len(between.addresses)
    settings = TrainSettings(algorithm="ad-psgd", workers=size, launcher_args=between.launcher_args)
    command = [sys.executable, "-m", "training.launching.message_probe", "", *map(str, SIZES)]
    completed = subprocess.run(
        between.on_host(0, *rank_command(settings, command)),
        env=rank_environment(settings),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=100,
    )
    results = json.loads(
        next(line for line in completed.stdout.splitlines() if line.startswith("{"))
    )["measured"]
    return [Measurement(**result) for result in results if result["operation"] != ALL_REDUCE]


def misses(measured: list[Measurement], *, ring_above: float) -> list[str]:
    """What a model, fitted on some measurements, predicts wrongly of the others."""
    link = fit_link(
        [measurement for measurement in measured if is_fitted(measurement)], ring_above=ring_above
    )
    wrong = []
    for measurement in measured:
        expected = predicted_seconds(measurement, link, ring_above)
        use = "fitted" if is_fitted(measurement) else "check"
        message = f"{measurement}: predicted {1e3 * expected:.1f} ms ({use})"
        sys.stdout.write(f"{message}\n")
        if not is_fitted(measurement) and abs(expected / measurement.seconds - 1) > MOST_ERROR:
            wrong.append(message)
    assert DELAY < link.latency < 1.5 * DELAY
    return wrong


@pytest.mark.parametrize(("algorithm", "ring_above"), [("doubling", float("inf")), ("ring", 0.0)])
def test_all_reduces_of_other_sizes_and_more_workers_take_the_predicted_time(
    tmp_path: Path, algorithm: str, ring_above: float
) -> None:
    # Eight hosts share the cores of this machine: what else it does only makes messages late.
    for attempt in range(3):
        measured = []
        for workers in WORKERS:
            with network(
                workers, tmp_path / f"{attempt}-{workers}", delay=DELAY, rate=RATE
            ) as between:
                measured += all_reduces(between, algorithm)
        wrong = misses(measured, ring_above=ring_above)
        if not wrong:
            break
    assert wrong == []


def test_averages_of_other_sizes_and_pushes_take_the_predicted_time(tmp_path: Path) -> None:
    with network(2, tmp_path, delay=DELAY, rate=RATE) as between:
        measured = averages_and_pushes(between)
    assert {measurement.operation for measurement in measured} == {"sockets", PUSH}
    assert misses(measured, ring_above=0.0) == []
