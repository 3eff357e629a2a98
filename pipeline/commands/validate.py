"""`validate`: check the config and its input files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from rich.console import Console

from ingestion.errors import EmptySampleError, grouped
from ingestion.files import found_files
from ingestion.notes import notes
from models.networks.registry import NETWORKS
from pipeline.config import Config
from pipeline.configuration.contradictions import simulated_processes
from pipeline.stages.train import refuse_idle
from pipeline.terminal.progress import Bar


def validate(config: Config, console: Console) -> Iterator[str]:
    """Find the input files and check them as `ingest` will: trees, branches; yields lines for the terminal."""
    signals = config.signals
    for network in config.model.names:
        refuse_idle(network, config.training_of(network))
    for network, kind in NETWORKS.items():
        is_set = network in config.train_by_network or config.model.of(network) != kind()
        if is_set and network not in config.model.names:
            yield f"note: what is set for {network} has no effect, since model.names has no {network}"
    if config.notify and shutil.which(config.notify[0]) is None:
        yield f"note: notify: there is no program '{config.notify[0]}'"
    said: list[str] = []
    # Once made, simulated samples have paths.
    to_come = [sample for sample in config.samples if simulated_processes(sample)]
    there, particles = (
        [sample for sample in config.samples if sample not in to_come],
        config.features.particles,
    )
    try:
        with Bar(console, "checking files", "files") as bar:
            found = found_files(
                there, config.ingest, said.append, on_file=bar, needs_particles=particles
            )
    finally:
        yield from said
    yield from (
        f"would be skipped: {words}"
        for words in grouped((each.path, each.message) for each in found.bad)
    )
    files, samples = (
        [info._asdict() for info in found.infos],
        [sample.model_dump() for sample in there],
    )
    yield from (f"note: {words}" for words in notes(files, samples))
    for sample in config.samples:
        of_class = f"class {' or '.join(config.classes[label] for label in sample.labels)}"
        if sample in to_come:
            yield f"{sample.name}: made by simulate, {of_class}"
            continue
        entries = [info.entries for info in found.infos if info.sample == sample.name]
        if not sum(entries):
            raise EmptySampleError(
                f"sample '{sample.name}': its files hold no entries. Check them."
            )
        yield f"{sample.name}: {len(entries)} files, {sum(entries)} entries, {of_class}"
    yield f"signal: {' + '.join(signals)}"
    yield "the config is valid"
