"""Samples of the stage `simulate`: the paths of their files, and their cross-sections, in the version in use."""

from __future__ import annotations

import glob
from typing import Any

from ingestion.generation.settings import SCHEME
from pipeline.config import Config, simulated_processes
from pipeline.runs.store import StageStore


def with_simulated_samples(config: Config) -> Config:
    """The config with paths instead of `simulate://` names, and with the cross-sections of the simulation.

    A cross-section of the config prevails. Without an output of `simulate` nothing changes.

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
        if names and set(names) <= set(made):
            folder = glob.escape(str(version.folder))
            files = [
                f"{folder}/{name.removeprefix(SCHEME)}/*.root" if name.startswith(SCHEME) else name
                for name in sample.files
            ]
            cross_section = sample.cross_section_pb
            if cross_section is None and len(names) == len(sample.files):
                cross_section = sum(made[name]["cross_section_pb"] for name in names)
            sample = sample.model_copy(update={"files": files, "cross_section_pb": cross_section})  # noqa: PLW2901
        samples.append(sample)
    return config.model_copy(update={"samples": samples})
