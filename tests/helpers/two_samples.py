"""A config of two samples, and the finished stages of a run of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from example_versions import example_versions

from pipeline.config import Config
from pipeline.runs.manifest import StageManifest
from pipeline.runs.version import Version


def finished_stages(folder: Path) -> dict[str, Version]:
    """Finished stages of the samples `qcd` and `ttbar`, of which 4 of 10 events are selected."""
    stages = {}
    for name, version in example_versions(folder).items():
        manifest_text = version.manifest.model_dump_json().replace("tt&bar", "ttbar")
        manifest = StageManifest.model_validate_json(manifest_text)
        stages[name] = replace(version, manifest=manifest)
    return stages


def two_samples(
    folder: Path,
    *,
    qcd: float | None = 1e5,
    ttbar: float | None = 800.0,
    features: dict[str, Any] | None = None,
    **evaluate: Any,
) -> Config:
    """A config of two samples with these cross-sections [pb]."""
    return Config.model_validate(
        {
            "run_dir": folder,
            "classes": ["QCD", "top"],
            "samples": [
                {"name": "qcd", "label": 0, "files": ["a.root"], "cross_section_pb": qcd},
                {"name": "ttbar", "label": 1, "files": ["a.root"], "cross_section_pb": ttbar},
            ],
            "features": features or {},
            "evaluate": {"signal": "top", **evaluate},
        }
    )
