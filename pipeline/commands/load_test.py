"""`load-test`: write the files of a load-test sample, and a config for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config import Config
from pipeline.configuration.local_folder import chosen_folder
from pipeline.configuration.yaml_text import write_yaml
from pipeline.errors import RunFolderError, cannot_write
from pipeline.run_folder import RunFolder
from pipeline.terminal.progress import Bar


def load_test(run_folder: RunFolder, folder: Path, num_events: int, *, seed: int) -> str:
    """Write `num_events` events of each sample of a config to a new folder, with `load_test.yaml`.

    Returns:
        A line with the next command.

    Raises:
        RunFolderError: The folder is not empty or cannot be written.
        IngestionError: A file of the config cannot be read.
    """
    from ingestion.errors import EmptySampleError, grouped
    from ingestion.files import found_files
    from ingestion.load_test import write_load_test

    config = run_folder.config
    folder = chosen_folder(folder, "load-test")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        in_use = any(folder.iterdir())
    except OSError as cause:
        raise cannot_write(folder, cause, other="another folder") from cause
    if in_use:
        raise RunFolderError(f"{folder} is not empty. Choose a new folder, so that files of two samples do not mix.")
    found = found_files(config.samples, config.ingest, run_folder.say, needs_particles=config.features.particles)
    for words in grouped((bad.path, bad.message) for bad in found.bad):
        run_folder.say(f"skipped: {words}")
    readable = {info.sample for info in found.infos}
    for sample in config.samples:
        if sample.name not in readable:
            raise EmptySampleError(
                f"sample '{sample.name}': none of its files can be read, so there is nothing to copy."
            )
    with Bar(run_folder.console, "load test", "events") as bar:
        files = write_load_test(
            found.infos, config.ingest, num_events, folder, rng=np.random.default_rng(seed), on_events=bar
        )
    path = folder / "load_test.yaml"
    path.write_text(write_yaml(_config_for(files, config)), encoding="utf-8")
    return f"{sum(map(len, files.values()))} files; next: python -m pipeline run --config {path}"


def _config_for(files: Mapping[str, Sequence[Path]], config: Config) -> dict[str, Any]:
    """The content of a config for the files of each sample, like that of the events they are copied from."""
    from ingestion.load_test import TREE, branch_map
    from ingestion.schema import WEIGHT_PREFIX

    content: dict[str, Any] = config.model_dump(mode="json", exclude_unset=True)
    if config.spark.conf:
        # The file holds no credentials; commands get them by --set.
        content["spark"]["conf"] = {name: each for name, each in config.spark.conf.items() if isinstance(each, str)}
    # A storage belongs to one run folder, and no events are to be simulated.
    for key in ("storage", "simulate"):
        content.pop(key, None)
    content |= {
        # Relative to the config, so that the folder can be moved.
        "run_dir": "run",
        "samples": [
            {"name": sample.name, "label": sample.label, "files": [path.name for path in files[sample.name]]}
            for sample in config.samples
        ],
        # The copies hold bits of b-tags, whatever their parents hold, and are written now.
        "ingest": {
            **content.get("ingest", {}),
            "tree": TREE,
            "branch_map": branch_map(),
            "min_btag": None,
            "until": None,
        },
    }
    if config.ingest.weights:
        # The copies' branches have the names of the columns.
        content["ingest"]["weights"] = {name: f"{WEIGHT_PREFIX}{name}" for name in config.ingest.weights}
    return content
