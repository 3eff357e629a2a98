"""`validate`: check the config and its input files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial

from rich.console import Console

from features.columns import INPUT_COLUMNS
from ingestion.conflicts import check_particles_of_training
from ingestion.errors import EmptySampleError, group_messages
from ingestion.file_info import HAS_PARTICLES, FileInfo, have_particles
from ingestion.files import Inventory, find_input_files
from ingestion.notes import notes
from ingestion.settings import SampleSettings
from models.networks.registry import NETWORKS, ModelName
from pipeline.config import Config
from pipeline.configuration.contradictions import simulated_processes
from pipeline.stages.data_events import find_data_files
from pipeline.stages.train import check_settings_act
from pipeline.terminal.progress import Bar
from training.errors import TrainingError
from training.gridsearch.settings import draw_trials
from training.settings import OptimizerName, TrainSettings


def validate(config: Config, console: Console) -> Iterator[str]:
    """Check the config, and files of samples and data as the stages will; yields lines of text.

    Errors are raised where they are found; the last line is yielded only for a valid config.
    """
    # A signal that does not follow from the config is an error.
    signals = config.signals
    for network in config.model.names:
        # Settings of the training without effect on this network are an error.
        settings = config.training_of(network)
        check_settings_act(network, settings)
        # Torch takes seconds to load, so that other trainings do without their networks.
        if settings.optimizer is OptimizerName.MUON or settings.algorithm.fewest_parameters:
            _check_networks(config, network, settings)
    yield from _idle_networks(config)
    if config.notify and shutil.which(config.notify[0]) is None:
        yield f"note: notify: there is no program '{config.notify[0]}'"

    # Simulated samples have no files before the stage `simulate` has run.
    samples = [sample for sample in config.samples if not simulated_processes(sample)]
    find_sample_files = partial(
        find_input_files, samples, config.ingest, needs_particles=config.features.particles
    )
    files = yield from _find_files(find_sample_files, samples, console)
    for sample in config.samples:
        classes = " or ".join(config.classes[label] for label in sample.labels)
        if sample in samples:
            infos = [info for info in files.infos if info.sample == sample.name]
            sizes = _sizes(infos, f"sample '{sample.name}'")
            yield f"{sample.name}: {sizes}, class {classes}"
        else:
            yield f"{sample.name}: made by simulate, class {classes}"
    if config.evaluate.data:
        data = yield from _find_files(partial(find_data_files, config), [], console)
        yield f"evaluate.data: {_sizes(data.infos, 'evaluate.data')}"
        # The samples are those of the training to come.
        check_particles_of_training(data.infos, {HAS_PARTICLES: have_particles(files.infos)})
    yield f"signal: {' + '.join(signals)}"
    yield "the config is valid"


def _check_networks(config: Config, network: ModelName, settings: TrainSettings) -> None:
    """Refuse a method or an optimiser that a network, or a candidate for it, is too small for.

    The networks are built with scalers that leave their inputs as they are.

    Raises:
        TrainingError: There is such a network; the message names it.
    """
    from models.networks.scaling_layer import Scaler
    from training.loop.factories import check_suits_network

    model = config.model.of(network)
    # The networks by what a message calls them.
    candidates = {network: model}
    if model.is_searched:
        candidates = {}
        for trial in draw_trials(config.gridsearch, seed=settings.seed):
            label = f"{network} with the widths {list(trial.hidden)} of gridsearch.hidden"
            candidates[label], _ = trial.applied_to(model, settings)
    scalers = {}
    for name in model.inputs:
        num_features = len(INPUT_COLUMNS[name].features)
        scalers[name] = Scaler([0.0] * num_features, [1.0] * num_features)
    for label, candidate in candidates.items():
        module = candidate.build(scalers, len(config.classes))
        shapes = [parameter.shape for parameter in module.parameters() if parameter.requires_grad]
        try:
            check_suits_network(settings, shapes)
        except TrainingError as cause:
            advice = ", or leave out these widths" if model.is_searched else ""
            raise type(cause)(f"{label}: {cause}{advice}.") from None


def _idle_networks(config: Config) -> Iterator[str]:
    """Yield a note about each network that has settings but is not trained."""
    for network, settings_class in NETWORKS.items():
        is_set = config.model.of(network) != settings_class() or network in config.train_by_network
        if is_set and network not in config.model.names:
            yield (
                f"note: what is set for {network} has no effect, since model.names has no {network}"
            )


def _find_files(
    find: Callable[..., Inventory], samples: Sequence[SampleSettings], console: Console
) -> Generator[str, None, Inventory]:
    """Find and open the files of samples or data; yields notes about them, and returns the files.

    As a generator with `yield from`, it hands its messages on even if it then raises.

    Args:
        find: Gets a function that takes messages, and `on_file`, as `find_input_files` does.
        samples: The samples of the files, for notes; none for data.
        console: Shows the progress.
    """
    messages: list[str] = []
    try:
        with Bar(console, "checking files", "files") as bar:
            files = find(messages.append, on_file=bar)
    finally:
        yield from messages
    for message in group_messages((file.path, file.message) for file in files.bad):
        yield f"would be skipped: {message}"
    for note in notes(files.infos, samples):
        yield f"note: {note}"
    return files


def _sizes(infos: Sequence[FileInfo], origin: str) -> str:
    """Return the numbers of files and entries, as text; `origin` is for the message.

    Raises:
        EmptySampleError: There are no entries.
    """
    entries = [info.entries for info in infos]
    if not sum(entries):
        raise EmptySampleError(f"{origin}: its files hold no entries. Check them.")
    return f"{len(entries)} files, {sum(entries)} entries"
