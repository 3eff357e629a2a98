"""Samples of the stage `simulate`: the paths of their files, and their cross-sections, in the version in use."""

from __future__ import annotations

import glob
from typing import Any

from pipeline.config import Config, simulated_processes
from pipeline.runs.store import StageStore


def with_simulated_samples(config: Config) -> Config:
    """The config with paths instead of `simulate://` names, and with the cross-sections of the simulation.

    A cross-section, or its error, of the config prevails. Without an output of `simulate` nothing changes.

    Args:
        config: The config.
    """
    if not any(map(simulated_processes, config.samples)):
        return config
    version = StageStore(config.run_dir, "simulate").current()
    if version is None:
        return config
    made: dict[str, Any] = version.manifest["counters"]["processes"]
    samples = []
    for sample in config.samples:
        names = simulated_processes(sample)
        if names and names[0] in made:
            changes: dict[str, Any] = {"files": [f"{glob.escape(str(version.folder))}/{names[0]}/*.root"]}
            if sample.cross_section_pb is None:
                known = made[names[0]]
                changes["cross_section_pb"] = known["cross_section_pb"]
                changes["cross_section_error_pb"] = sample.cross_section_error_pb or known["cross_section_error_pb"]
            sample = sample.model_copy(update=changes)  # noqa: PLW2901
        samples.append(sample)
    return config.model_copy(update={"samples": samples})
