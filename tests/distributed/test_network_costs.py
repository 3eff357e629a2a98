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

from hep_studies.fitted_links import fit_link, predicted_seconds
from training.launching.measurement import ALL_REDUCE, PUSH, Measurement
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
#: Bytes; the size in the middle is predicted.
SIZES = (64, 8192, 32_768)
#: The largest number is predicted.
WORKERS = (2, 4, 8)
MAX_RELATIVE_ERROR = 0.25


def calibrates(measurement: Measurement) -> bool:
    """True if the model is fitted on this measurement; False if the measurement checks it."""
    return (
        measurement.operation != PUSH
        and measurement.workers < WORKERS[-1]
        and measurement.nbytes != SIZES[1]
    )


def measure_all_reduces(hosts: Network, algorithm: str) -> list[Measurement]:
    """All-reduces by plain sockets, one rank a host."""
    medians_by_host = hosts.messages(algorithm, SIZES)
    measurements = []
    for nbytes in SIZES:
        slowest = max(medians[str(nbytes)] for medians in medians_by_host)
        measurements.append(Measurement(ALL_REDUCE, len(hosts.addresses), nbytes, slowest))
    return measurements


def measure_averages_and_pushes(hosts: Network) -> list[Measurement]:
    """Averages and pushes as the methods make them, one rank a host."""
    settings = TrainSettings(
        algorithm="ad-psgd", workers=len(hosts.addresses), launcher_args=hosts.launcher_args
    )
    probe = [sys.executable, "-m", "training.launching.message_probe", "", *map(str, SIZES)]
    completed = subprocess.run(
        hosts.on_host(0, *rank_command(settings, probe)),
        env=rank_environment(settings),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=100,
    )
    report = next(line for line in completed.stdout.splitlines() if line.startswith("{"))
    measurements = [Measurement(**fields) for fields in json.loads(report)["measured"]]
    return [measurement for measurement in measurements if measurement.operation != ALL_REDUCE]


def wrong_predictions(measurements: list[Measurement], *, ring_above: float) -> list[str]:
    """Measurements that a model misses that was fitted on the calibrating ones."""
    calibrating = [measurement for measurement in measurements if calibrates(measurement)]
    link = fit_link(calibrating, ring_above=ring_above)
    assert DELAY < link.latency < 1.5 * DELAY

    messages = []
    for measurement in measurements:
        predicted = predicted_seconds(measurement, link, ring_above)
        message = f"{measurement}: predicted {1e3 * predicted:.1f} ms"
        sys.stdout.write(f"{message}\n")
        relative_error = abs(predicted / measurement.seconds - 1)
        if not calibrates(measurement) and relative_error > MAX_RELATIVE_ERROR:
            messages.append(message)
    return messages


@pytest.mark.parametrize(("algorithm", "ring_above"), [("doubling", float("inf")), ("ring", 0.0)])
def test_all_reduces_of_other_sizes_and_more_workers_take_the_predicted_time(
    tmp_path: Path, algorithm: str, ring_above: float
) -> None:
    # Eight hosts share the cores of this machine: its other work only makes messages late.
    for attempt in range(3):
        measurements = []
        for workers in WORKERS:
            folder = tmp_path / f"{attempt}-{workers}"
            with network(workers, folder, delay=DELAY, rate=RATE) as hosts:
                measurements += measure_all_reduces(hosts, algorithm)
        wrong = wrong_predictions(measurements, ring_above=ring_above)
        if not wrong:
            break

    assert wrong == []


def test_averages_of_other_sizes_and_pushes_take_the_predicted_time(tmp_path: Path) -> None:
    with network(2, tmp_path, delay=DELAY, rate=RATE) as hosts:
        measurements = measure_averages_and_pushes(hosts)

    assert {measurement.operation for measurement in measurements} == {"sockets", PUSH}
    assert wrong_predictions(measurements, ring_above=0.0) == []
