"""`validate`: check the config and its input files."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console

from ingestion.errors import EmptySampleError
from ingestion.files import expand, inventory, refuse_waiting
from pipeline.config import Config, simulated_processes
from pipeline.terminal.progress import Bar


def validate(config: Config, console: Console) -> Iterator[str]:
    """Find the input files and check them as `ingest` will: trees, branches; yields lines for the terminal.

    Raises:
        IngestionError: A sample has no file, or a file is bad.
    """
    unmatched: list[str] = []
    # Once made, simulated samples have paths.
    to_come = [sample for sample in config.samples if simulated_processes(sample)]
    sources = expand((sample for sample in config.samples if sample not in to_come), on_unmatched=unmatched.append)
    with Bar(console, "checking files", "files") as bar:
        found = inventory(sources, config.ingest, on_file=bar, needs_particles=config.features.particles)
    yield from (f"note: {words}" for words in unmatched)
    yield from (f"would be skipped: {each.message}" for each in found.bad)
    yield from (f"would be left for another run: {each.path}: {each.reason}" for each in found.waiting)
    refuse_waiting(found, config.ingest)
    for sample in config.samples:
        if sample in to_come:
            yield f"{sample.name}: made by simulate, class {config.classes[sample.label]}"
            continue
        entries = [info.entries for info in found.infos if info.sample == sample.name]
        if not sum(entries):
            raise EmptySampleError(f"sample '{sample.name}': its files hold no entries. Check them.")
        yield f"{sample.name}: {len(entries)} files, {sum(entries)} entries, class {config.classes[sample.label]}"
    yield "the config is valid"
