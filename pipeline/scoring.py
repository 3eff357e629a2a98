"""A classifier that scores ROOT entries, events or features as its training saw them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from features.columns import INPUT_COLUMNS
from features.functions import needed_branches
from features.kernel_pass import feature_rows, metadata_settings
from features.kernels import OUTCOMES, SELECTED, FeatureBlock, build_features
from features.matrices import model_inputs, particle_matrices, particles_from_core
from features.schema import stated_settings
from features.settings import FeatureSettings
from hep_core.plugins import load
from ingestion.conflicts import check_particles_of_training
from ingestion.file_info import HAS_PARTICLES, FileInfo
from ingestion.files import find_input_files
from ingestion.reader import RawEvents, read_events
from ingestion.schema import COLLECTIONS
from ingestion.selection import Selection, select_events
from ingestion.settings import NO_WEIGHT, IngestSettings, SampleSettings
from models.errors import ModelError
from models.prediction import Predictor
from models.prediction_files import probability_branches
from pipeline.event_tables import as_table
from pipeline.runs.models_on_disk import find_models
from pipeline.runs.plugin_code import check_plugin_code
from pipeline.runs.trained_models import FoundModel, check_same_settings
from pipeline.scoring_advice import advise_on_model

#: Reasons for which an entry has no score, by the number of its flag; 0 is an entry with scores.
FLAGS: Final = ("scored", "rejected_nonfinite", "rejected_no_lepton", *OUTCOMES[SELECTED + 1 :])
#: Events that a network takes at a time: 256 with particle lists take half a GB.
_BATCH_SIZE: Final = 256


class ScoredEntries(NamedTuple):
    """The scores of consecutive entries of a ROOT file, in their order."""

    flag: NDArray[np.int8]
    """(num_events,) index into FLAGS: 0 with scores, else the reason why there are none."""
    probability: NDArray[np.float32]
    """(num_events, num_classes); NaN where there is no score."""
    counts: dict[str, int]
    """Numbers of entries by step of ingest and unusual content; see `ingestion.tally`."""


class EventClassifier(NamedTuple):
    """A model with the settings by which the events of its training were read and selected.

    With these settings it scores new ROOT files, events or features as its training saw them.
    """

    name: str
    model: Predictor
    classes: list[str]
    reading: IngestSettings
    """How ROOT files are read: branches, units, thresholds."""
    selection: FeatureSettings
    """Which events are selected, and how their features are computed."""
    dataset: Path | None = None
    """The features of its training; None if they are unknown or gone."""
    has_particles: bool | None = None
    """Whether the files of its training have particles; None if an earlier release made it."""

    @classmethod
    def from_model(cls, found: FoundModel) -> EventClassifier:
        """Make a classifier from a model that was found on disk.

        Raises:
            ModelError: The model does not say how its events were read.
        """
        name = found.candidate.name
        if not found.reading:
            raise ModelError(
                f"{name} does not say how the events of its training were read: an earlier release "
                f"made its features. Make features and train again."
            )
        settings = dict(found.reading)
        has_particles = settings.pop(HAS_PARTICLES, None)
        return cls(
            name,
            found.candidate.model,
            found.classes,
            IngestSettings(**settings),
            FeatureSettings(**found.definitions),
            found.dataset,
            has_particles,
        )

    def scores(self, events: Any) -> NDArray[np.float32]:
        """Return the probabilities of the classes for each event.

        Args:
            events: An awkward array, pandas DataFrame, Arrow table or record batch with the
                columns of the features Parquet, or with those of the events Parquet, from which
                the features are computed.

        Returns:
            (num_events, num_classes); NaN for events that the selection rejects.

        Raises:
            features.errors.DatasetError: The events are no table, or a column is missing or has
                empty values.
            ModelError: The features say that they were made with other settings than those of the
                training, or the model is damaged: selected events get probabilities that are not
                finite.
        """
        table = as_table(events)
        # Only events, not features, have the columns with lists of particles.
        if COLLECTIONS.keys().isdisjoint(table.schema.names):
            return self._scores_of_features(table)
        probabilities = np.full((table.num_rows, len(self.classes)), np.nan, np.float32)
        block = build_features(table, self._needed_settings)
        probabilities[block.selected] = self.block_scores(block)
        return probabilities

    def _scores_of_features(self, table: pa.Table) -> NDArray[np.float32]:
        """Return the probabilities of the rows of a features table, (num_rows, num_classes).

        Raises:
            ModelError: The table states a setting that differs from that of the training.
        """
        event_settings = stated_settings(table.schema)
        training_settings = metadata_settings(self.selection, self.reading.model_dump(mode="json"))
        # Only settings that the table states can be compared.
        comparable = {
            key: value for key, value in training_settings.items() if key in event_settings
        }
        check_same_settings(self.name, comparable, event_settings)
        inputs = model_inputs(table, self.model.inputs, max_particles=None)
        batches = []
        for first in range(0, table.num_rows, _BATCH_SIZE):
            rows = slice(first, first + _BATCH_SIZE)
            batches.append({name: values[rows] for name, values in inputs.items()})
        return self._probabilities(batches)

    def entries(
        self, info: FileInfo, settings: IngestSettings
    ) -> Iterator[tuple[RawEvents, ScoredEntries]]:
        """Yield the entries of a ROOT file in their order, piece by piece, with their scores.

        An entry passes two steps: ingest keeps or rejects it, then the selection of the features
        does. Only entries that pass both get scores; the others get the reason as their flag.

        Args:
            info: The file, from `ingestion.files.find_input_files`.
            settings: `reading`, possibly with pass-through columns.

        Raises:
            hep_core.input_errors.InputFileError: The file cannot be read.
            ModelError: The model is damaged: selected events get probabilities that are not finite.
        """
        for raw, ingested, block in self._read_blocks(info, settings):
            flag = np.zeros(raw.num_events, np.int8)
            for name in ("rejected_nonfinite", "rejected_no_lepton"):
                flag[ingested.steps[name]] = FLAGS.index(name)
            # Rows of the entries that ingest keeps, to which `block.outcome` belongs.
            ingested_rows = np.flatnonzero(flag == 0)
            # In FLAGS, the rejections of the selection (1, 2, ...) follow the last one of ingest.
            rejection = block.outcome + FLAGS.index("rejected_no_lepton")
            flag[ingested_rows] = np.where(block.outcome == SELECTED, 0, rejection)
            probability = np.full((raw.num_events, len(self.classes)), np.nan, np.float32)
            probability[ingested_rows[block.selected]] = self.block_scores(block)
            yield raw, ScoredEntries(flag, probability, ingested.tally().counts)

    def _read_blocks(
        self, info: FileInfo, settings: IngestSettings
    ) -> Iterator[tuple[RawEvents, Selection, FeatureBlock]]:
        """Yield the pieces of a file as `read_blocks` does; its errors name no keys of a config."""
        kept_branches = set(settings.pass_through).difference(needed_branches())
        with advise_on_model(keeps_branches=bool(kept_branches)):
            yield from read_blocks([info], settings, self._needed_settings)

    def files(
        self, inputs: Sequence[str], say: Callable[[str], None], *, keep: Sequence[str] = ()
    ) -> tuple[IngestSettings, list[FileInfo]]:
        """Find and check ROOT files whose events have no labels, such as data.

        Args:
            inputs: Globs or URLs.
            say: Called with notes about the files.
            keep: Branches of one number per event that are read too and passed through unchanged.

        Returns:
            The settings by which they are read, and the files.

        Raises:
            hep_core.input_errors.InputFileError: A file is missing or cannot be read, or it has
                particles and the files of the training have none, or the reverse.
        """
        pass_through = list(dict.fromkeys([*keep, *needed_branches()]))
        settings = self.reading.model_copy(update={"pass_through": pass_through})
        sample = SampleSettings(name="inputs", label=0, files=list(inputs), weight=NO_WEIGHT)
        with advise_on_model(keeps_branches=bool(keep)):
            inventory = find_input_files(
                [sample],
                settings,
                say,
                strict=True,
                needs_particles=self.selection.particles,
                needs_weights=False,
            )
        check_particles_of_training(inventory.infos, {HAS_PARTICLES: self.has_particles})
        return settings, inventory.infos

    def columns(self, raw: RawEvents, scored: ScoredEntries) -> dict[str, NDArray[Any]]:
        """Return the columns of an output file with scores, each (num_events,), by name.

        `entry` is the position in the ROOT file, `flag` an index into FLAGS, `predicted` the index
        of the most probable class (-1 without scores). Each class has a `probability_<class>`.
        """
        # NaN becomes -1, since `argmax` would return the first NaN.
        best_class = np.nan_to_num(scored.probability, nan=-1.0).argmax(axis=1)
        columns: dict[str, NDArray[Any]] = {
            "entry": raw.entries,
            "flag": scored.flag,
            "predicted": np.where(scored.flag == 0, best_class, -1),
        }
        probabilities = np.ascontiguousarray(scored.probability.T)
        columns |= dict(zip(probability_branches(self.classes), probabilities, strict=True))
        return columns

    @property
    def _needed_settings(self) -> FeatureSettings:
        """The settings of the selection, without lists of particles if the model takes none.

        To fill the lists takes half of the time for the features.
        """
        takes_lists = self.selection.particles and self.model.inputs != ("hlf",)
        return self.selection.model_copy(update={"particles": takes_lists})

    def block_scores(self, block: FeatureBlock) -> NDArray[np.float32]:
        """Return the probabilities of the selected events of a block, (num_selected, num_classes).

        A block holds the features of consecutive events. The model gets 256 events at a time.

        Raises:
            ModelError: An event with finite features gets probabilities that are not finite.
        """
        first_rows = range(0, len(block.selected), _BATCH_SIZE)
        return self._probabilities(self._batch_inputs(block, first) for first in first_rows)

    def _batch_inputs(self, block: FeatureBlock, first: int) -> dict[str, NDArray[Any]]:
        """Return the inputs of the model for 256 selected events, or fewer at the end, by name.

        Args:
            block: Features of consecutive events.
            first: The first row of the batch among the selected events.
        """
        inputs: dict[str, NDArray[Any]] = {"hlf": block.hlf[first : first + _BATCH_SIZE]}
        if "particles" in self.model.inputs:
            # The particles of all events lie one after the other in `block.core`; those of event i
            # begin at offset i and end before offset i + 1.
            offsets = block.particle_offsets[first : first + _BATCH_SIZE + 1]
            particles = particles_from_core(block.core[offsets[0] : offsets[-1]].T)
            inputs["particles"] = particle_matrices(offsets - offsets[0], particles, None)
            count_dtype = INPUT_COLUMNS["num_particles"].dtype
            inputs["num_particles"] = np.diff(offsets).astype(count_dtype)
        return inputs

    def _probabilities(self, batches: Iterable[Mapping[str, NDArray[Any]]]) -> NDArray[np.float32]:
        """Return the probabilities of the events of all batches, (num_events, num_classes).

        Args:
            batches: Inputs of the model by name; the first axis of each array is that of events.

        Raises:
            ModelError: An event with finite inputs gets probabilities that are not.
        """
        # An empty first array gives the result its shape if there are no batches.
        probabilities = [np.empty((0, len(self.classes)), np.float32)]
        for inputs in batches:
            batch_probabilities = self.model.probabilities(inputs)
            has_finite_inputs = np.ones(len(batch_probabilities), bool)
            for values in inputs.values():
                has_finite_inputs &= np.isfinite(values).reshape(len(values), -1).all(axis=1)
            if not np.isfinite(batch_probabilities[has_finite_inputs]).all():
                raise ModelError(
                    f"{self.name} gives finite features probabilities that are not. Train it again."
                )
            probabilities.append(batch_probabilities)
        return np.concatenate(probabilities)


def read_blocks(
    files: Iterable[FileInfo], reading: IngestSettings, selection: FeatureSettings
) -> Iterator[tuple[RawEvents, Selection, FeatureBlock]]:
    """Read all entries of ROOT files piece by piece, and compute their features.

    Args:
        files: Checked ROOT files.
        reading: How they are read, and which entries ingest keeps.
        selection: Which events are selected, and how their features are computed.

    Yields:
        For each piece: all its entries, those that ingest keeps, and the features of the latter.
    """
    for info in files:
        # Of a file without entries, `inspect_file` has read no branches.
        if not info.entries:
            continue
        for raw in read_events(info, reading, start=0, stop=info.entries):
            ingested = select_events(raw, info, reading)
            yield raw, ingested, build_features(ingested.table, selection)


def load_classifier(path: str | Path, *, plugins: Sequence[str] = ()) -> EventClassifier:
    """Read a classifier: a training folder, or an exported ONNX file.

    Args:
        path: The folder or file.
        plugins: Files or modules with its network and features, if they are not ours.

    Raises:
        PluginError: A plugin cannot be imported.
        MissingInputError: There is no model at the path, or there are several.
        ModelError: The model cannot be read, or does not say how its events were read.
        PluginCodeError: Plugins that it needs have changed since its training.
    """
    load(plugins)
    models = find_models([str(path)])
    if len(models) > 1:
        names = ", ".join(model.candidate.name for model in models)
        raise ModelError(f"{path} holds several models: {names}. Name one of these folders.")
    check_plugin_code(models)
    return EventClassifier.from_model(models[0])


def features_of(events: Any, selection: FeatureSettings) -> pa.Table:
    """Compute the features of the events that the selection keeps.

    Args:
        events: An awkward array, pandas DataFrame, Arrow table or record batch with the columns of
            the events Parquet.
        selection: The section `features` of a config, or `EventClassifier.selection`.

    Returns:
        One row per selected event, with the columns of the features Parquet. The metadata of the
        table states the settings, by which a classifier checks that they are those of its training.

    Raises:
        features.errors.DatasetError: The events are no table, or a column is missing or has empty
            values.
    """
    table = as_table(events)
    block = build_features(table, selection)
    rows = feature_rows(table, block)
    settings = json.dumps(metadata_settings(selection, {}))
    return rows.replace_schema_metadata({"settings": settings})
