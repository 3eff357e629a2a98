"""In the simulator, a bound on staleness around a method of neighbours mixed its messages with the models."""

from __future__ import annotations

import pytest
from simulated import METHODS, run


@pytest.mark.parametrize("method", ["d-psgd", "choco-sgd"])
def test_a_bound_around_a_method_that_steps_together_changes_nothing(method: str) -> None:
    bounded, free = (run(epochs=1, **METHODS[method], **more) for more in ({"staleness_bound": 1}, {}))
    assert bounded.parameters.equal(free.parameters)
