"""`python -m features` compiles the kernels before the first run, and caches the machine code.

This takes about half a minute.
"""

from __future__ import annotations

from features.kernels import build_features
from features.settings import FeatureSettings
from ingestion.schema import events_schema

if __name__ == "__main__":
    build_features(events_schema().empty_table(), FeatureSettings())
