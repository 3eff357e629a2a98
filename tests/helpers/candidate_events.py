"""Events with candidates of every kind, drawn by a seed."""

from __future__ import annotations

import numpy as np
from made_events import Row, jet, lepton, made_event, tower, track


def drawn_events(count: int, *, seed: int = 3) -> list[Row]:
    """Events with candidates of every kind, of which every lepton passes."""
    rng = np.random.default_rng(seed)

    def angles() -> list[float]:
        return list(rng.uniform([-2.5, -3.1], [2.5, 3.1]))

    return [
        made_event(
            electrons=[lepton(30.0 + entry, *angles())],
            muons=[lepton(5.0, *angles(), charge=1)] * (entry % 3),
            tracks=[
                track(1.0 + rng.exponential(3), *angles(), vertex=tuple(rng.normal(0, 20, 3)))
                for _ in range(rng.integers(1, 30))
            ],
            photons=[tower(1.5 + rng.exponential(3), *angles()) for _ in range(rng.integers(0, 10))],
            neutral_hadrons=[tower(1.5 + rng.exponential(3), *angles()) for _ in range(entry % 4)],
            jets=[jet(40.0, *angles(), btag=entry % 8) for _ in range(entry % 5)],
            met=20.0 + entry,
            met_phi=rng.uniform(-3, 3),
            weight=0.5 + entry,
        )
        for entry in range(count)
    ]
