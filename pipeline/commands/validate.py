"""`validate`: check the config and its input files."""

from __future__ import annotations

from collections.abc import Iterator

from ingestion.files import expand
from pipeline.config import Config, simulated_processes


def validate(config: Config) -> Iterator[str]:
    """Find the input files; yields lines for the terminal.

    Raises:
        IngestionError: A sample has no file.
    """
    unmatched: list[str] = []
    # Once made, simulated samples have paths.
    to_come = [sample for sample in config.samples if simulated_processes(sample)]
    sources = expand((sample for sample in config.samples if sample not in to_come), on_unmatched=unmatched.append)
    for sample in config.samples:
        if sample in to_come:
            yield f"{sample.name}: made by simulate, class {config.classes[sample.label]}"
            continue
        files = sum(source.sample == sample.name for source in sources)
        yield f"{sample.name}: {files} files, class {config.classes[sample.label]}"
    yield from (f"note: {words}" for words in unmatched)
    yield "the config is valid"
