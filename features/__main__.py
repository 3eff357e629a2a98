"""`python -m features` compiles the kernels ahead of the first run (about half a minute; the result is cached)."""

from __future__ import annotations

from features.kernels import build_features
from features.settings import FeatureSettings
from ingestion.schema import events_schema

if __name__ == "__main__":
    build_features(events_schema().empty_table(), FeatureSettings())
