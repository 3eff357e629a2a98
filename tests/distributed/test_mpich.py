"""The tests of the transport run under MPICH too, if there is one: see `rank_programs.MPICH_VARIABLE`."""

from __future__ import annotations

from pathlib import Path

import pytest
from rank_programs import IMPLEMENTATIONS, MPICH_VARIABLE, mpich, results_of

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(60)]


def test_mpich_is_among_the_implementations_that_are_tested(tmp_path: Path) -> None:
    found = mpich()
    if found is None:
        pytest.skip(
            f"no MPICH: set {MPICH_VARIABLE} to the Python of an environment with `pip install mpich mpi4py 'numpy<2'`"
        )
    assert found in IMPLEMENTATIONS
    for result in results_of(found, 2, "messages:start_up_test", tmp_path / "ranks"):
        assert result["library"].startswith("MPICH")
