"""Simulated clusters of any speeds, pauses and delays, for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from hep_studies.simulator.cluster import ClusterSettings

clusters = st.builds(
    ClusterSettings,
    step_seconds=st.sampled_from([0.0, 1e-3]),
    jitter=st.sampled_from([0.0, 0.3, 1.0]),
    slow_ranks=st.dictionaries(st.integers(0, 7), st.sampled_from([0.5, 2.0, 10.0]), max_size=3),
    pause_probability=st.sampled_from([0.0, 0.2]),
    pause_seconds=st.just(5e-3),
    latency_seconds=st.sampled_from([0.0, 1e-6, 5e-4, 2e-3]),
)
