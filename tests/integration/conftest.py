"""What several of these modules start from."""

from __future__ import annotations

import pytest
from undisturbed_run import Undisturbed


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """A finished run, made once; each test puts its run folder back to where it wants it."""
    return Undisturbed(tmp_path_factory.mktemp("undisturbed") / "Jürgen's")
