"""Samples whose files the stage `simulate` makes."""

from __future__ import annotations

from typing import Any

from hep_core.paths import pattern_in
from ingestion.settings import SampleSettings
from pipeline.config import Config
from pipeline.configuration.contradictions import simulated_processes
from pipeline.errors import RunFolderError
from pipeline.runs.counters import SimulateCounters, SimulatedProcess
from pipeline.runs.store import StageStore


def with_simulated_samples(config: Config) -> Config:
    """Return a config in which names of simulated samples (`simulate://`) are replaced.

    Such a sample gets the paths of the ROOT files that the stage `simulate` wrote, and the
    cross-section of the simulation unless the config states one. Without a readable output of
    `simulate`, the config is returned as it is.
    """
    if not any(simulated_processes(sample) for sample in config.samples):
        return config
    try:
        version = StageStore(config.run_dir, "simulate").current()
        if version is None:
            return config
        simulated = version.counters(SimulateCounters).processes
    except RunFolderError:
        # The command that needs the damaged version names it.
        return config
    samples = []
    for sample in config.samples:
        processes = simulated_processes(sample)
        if processes and processes[0] in simulated:
            process = processes[0]
            files = pattern_in(version.folder, f"{process}/*.root")
            samples.append(_simulated_sample(sample, files, simulated[process]))
        else:
            samples.append(sample)
    return config.model_copy(update={"samples": samples})


def _simulated_sample(
    sample: SampleSettings, files: str, process: SimulatedProcess
) -> SampleSettings:
    """Return a sample with the files of its simulated process, and with its cross-section.

    Args:
        sample: The sample in the config. A cross-section or an error there prevails.
        files: Glob pattern of the simulated files.
        process: The cross-section [pb] of the simulation, with its error.
    """
    changes: dict[str, Any] = {"files": [files]}
    if sample.cross_section_pb is None:
        error = sample.cross_section_error_pb or process.cross_section_error_pb
        changes["cross_section_pb"] = process.cross_section_pb
        changes["cross_section_error_pb"] = error
    return sample.model_copy(update=changes)
