"""What several of these modules start from."""

from __future__ import annotations

import pytest
from extracted_features import Extract, extract_with_kernels, extract_with_reference


@pytest.fixture(params=[extract_with_kernels, extract_with_reference], ids=["kernels", "reference"])
def extract(request: pytest.FixtureRequest) -> Extract:
    """Features of events: numbers worked out by hand must come from the kernels and the reference."""
    function: Extract = request.param
    return function
