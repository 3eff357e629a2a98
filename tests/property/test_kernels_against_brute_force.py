"""The parts of the kernels that are fast because they are clever, against plain ways to the same result."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.arrays import Floats
from features.columns import MAX_PARTICLES, NEUTRAL, NUM_CORE, PARTICLE_COLUMNS, PHOTON, TRACK
from features.isolation import Candidates, relative_isolations
from features.kinematics import delta_phi
from features.low_level import CORE, highest_pt, sorted_by
from features.matrices import features_of, matrices_of, of_columns
from features.mixing_pass import PickedRows, gathered

EDGE = 1e-6
seeds = st.integers(0, 2**32 - 1)
#: From cones smaller than any distance to cones that leave no three columns.
cones = st.one_of(st.floats(1e-4, 0.05), st.floats(0.05, 1.0), st.floats(1.0, 3.0))


def candidates(seed: int, *, spread: float, within_pi: bool) -> Candidates:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(0, 80))
    eta = rng.normal(0, spread, count)
    phi = rng.uniform(-math.pi, math.pi, count)
    phi[: count // 3] = np.clip(
        rng.choice([-1, 1], count // 3) * (math.pi - rng.exponential(0.05, count // 3)), -3, 3.14
    )
    if not within_pi:
        phi += rng.choice([-2, 0, 2, 4], count) * math.pi
    return Candidates(np.sort(rng.integers(0, 3, count)), rng.uniform(0.5, 50, count), eta, phi)


def isolations(event: Candidates, cone: float, *, as_published: bool) -> Floats:
    """Isolation of every candidate as a plain sum over all pairs."""
    kind, pt, eta, phi = event
    dphi = phi[:, None] - phi if as_published else delta_phi(phi[:, None], phi)
    inside = np.hypot(eta[:, None] - eta, dphi) < cone
    if not as_published:
        np.fill_diagonal(inside, val=False)
    sums = np.stack([inside[:, kind == each] @ pt[kind == each] for each in (TRACK, PHOTON, NEUTRAL)], axis=1)
    relative: Floats = sums / pt[:, None]
    if as_published:
        relative[:, TRACK] -= 1.0
    return relative


def on_edge(event: Candidates, cone: float, *, as_published: bool) -> np.ndarray:
    """Which particles have another at the very edge of their cone."""
    count = event.pt.size
    found = np.zeros(count, dtype=bool)
    for one in range(count):
        for other in range(count):
            dphi = event.phi[one] - event.phi[other]
            if not as_published:
                dphi = math.remainder(dphi, 2 * math.pi)
            if abs(math.hypot(event.eta[one] - event.eta[other], dphi) - cone) < EDGE:
                found[one] = True
    return found


@given(seeds, cones, st.sampled_from([0.3, 2.0, 12.0]), st.booleans())
@settings(max_examples=150)
def test_isolations_are_those_of_all_pairs(seed: int, cone: float, spread: float, as_published: bool) -> None:
    event = candidates(seed, spread=spread, within_pi=as_published)
    expected = isolations(event, cone, as_published=as_published)
    found = relative_isolations(event, cone, as_published)
    clear = ~on_edge(event, cone, as_published=as_published)
    np.testing.assert_allclose(found[clear], expected[clear], rtol=1e-9, atol=1e-9)


@given(seeds, st.integers(1, 4))
def test_sorting_is_that_of_python_with_ties_by_kind_pt_eta_phi(seed: int, digits: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(0, 60))
    # Few different values, so that there are ties of all depths.
    kind = rng.integers(0, 3, count)
    pt, eta, phi = (rng.integers(0, digits, count).astype(float) for _ in range(3))
    event = Candidates(kind, pt, eta, phi)
    key = rng.integers(-digits, digits + 1, count) * rng.choice([1.0, 1e-6, 1e6])
    chosen = np.arange(count)
    expected = sorted(range(count), key=lambda i: (key[i], kind[i], -pt[i], eta[i], phi[i], i))
    assert sorted_by(key, chosen, event).tolist() == expected


@given(seeds, st.integers(0, 30))
def test_the_hardest_are_kept_in_input_order(seed: int, cap: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(0, 40))
    pt, eta, phi = rng.integers(1, 6, count).astype(float), rng.normal(0, 1, count), rng.uniform(-3, 3, count)
    event = Candidates(np.full(count, PHOTON), pt, eta, phi)
    eligible = np.flatnonzero(rng.random(count) < 0.8)
    best = sorted(eligible.tolist(), key=lambda i: (-pt[i], eta[i], phi[i]))[:cap]
    if cap == 0 and eligible.size:
        return
    assert highest_pt(eligible, cap, event).tolist() == sorted(best)


@given(seeds)
@pytest.mark.slow
def test_padding_is_exactly_zero_and_last(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 20, 5)
    counts[2] = MAX_PARTICLES
    core = rng.normal(1, 1, (counts.sum(), NUM_CORE)).astype(np.float32)
    core[:, CORE.kind] = rng.integers(0, 5, len(core))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    padded = matrices_of(offsets, of_columns(core.T))
    rows = features_of(of_columns(core.T))
    for event, count in enumerate(counts):
        np.testing.assert_array_equal(padded[event, :count], rows[offsets[event] : offsets[event + 1]])
        assert not padded[event, count:].any()


@given(seeds, st.integers(1, 4))
@pytest.mark.slow
def test_gathering_rows_is_taking_them_and_turning_particles_into_columns(seed: int, num_chunks: int) -> None:
    rng = np.random.default_rng(seed)
    tables = []
    for _ in range(num_chunks):
        lengths = rng.integers(0, 5, int(rng.integers(1, 6)))
        offsets = np.concatenate([[0], np.cumsum(lengths)]) * NUM_CORE
        core = pa.LargeListArray.from_arrays(offsets, rng.integers(0, 99, offsets[-1]).astype(np.float32))
        tables.append(pa.table({"entry": rng.integers(0, 9, len(lengths)), "core": core}))
    parts = [pa.concat_tables(tables), tables[0].slice(1)]
    wanted = [np.sort(rng.integers(0, each.num_rows, 3 if each.num_rows else 0)) for each in parts]
    places = np.split(rng.permutation(sum(map(len, wanted))), [len(wanted[0])])
    reads = [partial(pa.Table.slice, part) for part in parts]
    found = gathered(list(map(PickedRows, reads, wanted, places)), sum(map(len, wanted))).to_pylist()
    for part, rows, here in zip(parts, wanted, places, strict=True):
        for expected, place in zip(part.take(rows).to_pylist(), here, strict=True):
            row = found[place]
            particles = np.reshape(expected["core"], (-1, NUM_CORE))
            assert (row["entry"], row["num_particles"]) == (expected["entry"], len(particles))
            assert [row[name] for name in PARTICLE_COLUMNS] == particles.T.tolist()


def test_kinds_are_numbered_as_the_sums() -> None:
    assert (TRACK, PHOTON, NEUTRAL) == (0, 1, 2)
