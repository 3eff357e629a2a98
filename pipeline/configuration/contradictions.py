"""Contradictions in a config: keys without effect beside the others, or that do not fit them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from features.columns import COLUMNS, NUM_PARTICLES, hlf_names
from features.functions import plugin_features
from hep_core.settings_section import Needs, check_keys_have_effect
from ingestion.expressions import sample_labels
from ingestion.schema import events_schema
from ingestion.settings import SampleSettings
from pipeline.configuration.credentials import holds_credential
from pipeline.configuration.mistakes import describe_mistake
from pipeline.configuration.simulate_section import SCHEME
from pipeline.errors import nearest
from pipeline.runs.code_meaning import PACKAGES, ROOT
from training.decorrelate_settings import DecorrelateSettings
from training.settings import TrainSettings

#: Columns of the predictions and of `features.kernel_pass.unmixed_schema`.
_OTHER_COLUMNS: Final = ("predicted", "file_uuid_high", "file_uuid_low", "hlf", "core")
#: The evaluation calls all classes but the signal so, and no class may have this name.
_ALL_BACKGROUNDS: Final = "all backgrounds"


def plain(name: str) -> str:
    """Reduce the name of a class to its letters and digits, in lower case.

    Two classes whose plain names are equal count as the same; `W+jets` and `wjets` are.
    """
    return re.sub(r"[\W_]", "", name).casefold()


def _letters_in_branches(class_name: str) -> str:
    """Reduce the name of a class to the letters and digits that names of branches keep of it.

    The branches of predictions keep those of ASCII only, so `μ+jets` and `τ+jets` would be one.
    Upper and lower case count as the same.
    """
    return re.sub(r"[^0-9A-Za-z]", "", class_name).casefold()


def simulated_processes(sample: SampleSettings) -> list[str]:
    """Return the processes whose files, `simulate://NAME`, a sample reads."""
    return [name.removeprefix(SCHEME) for name in sample.files if name.startswith(SCHEME)]


def _has_cross_section(sample: SampleSettings) -> bool:
    """Return whether the cross-section of a sample is set, or will be known from the simulation."""
    # The stage `simulate` computes the cross-sections of its samples.
    return sample.cross_section_pb is not None or bool(simulated_processes(sample))


def _has_rates(config: Any) -> bool:
    """Return whether the samples of a config have rates, or numbers of events at a luminosity."""
    return all(map(_has_cross_section, config.samples))


#: What `_has_rates` needs, in words.
_ALL_CROSS_SECTIONS: Final = "cross_section_pb of all samples"
#: Each row holds keys of the config, the setting that they need in words, and whether a config has
#: it. A key that is set without its need would have no effect.
_NEEDS_BY_KEYS: Final = (
    (
        "features.max_tracks features.max_photons features.max_neutral_hadrons features.ordering",
        "features.particles: true",
        lambda config: config.features.particles,
    ),
    (
        "features.integrated_luminosity evaluate.luminosity evaluate.fractions",
        _ALL_CROSS_SECTIONS,
        _has_rates,
    ),
    (
        "features.btag_mask",
        "the bit 1, the only one that ingest.min_btag gives",
        lambda config: config.ingest.min_btag is None or config.features.btag_mask & 1,
    ),
    (
        "ingest.max_bad_files",
        "ingest.on_bad_file: skip",
        lambda config: config.ingest.on_bad_file == "skip",
    ),
    (
        "evaluate.blind_above evaluate.unblind",
        "evaluate.data",
        lambda config: config.evaluate.data,
    ),
    (
        "evaluate.blind_above",
        "evaluate.unblind: false",
        lambda config: not config.evaluate.unblind,
    ),
    (
        "evaluate.systematics.jet_scale evaluate.systematics.met_scale",
        "a model of high-level features alone: hlf among model.names, or evaluate.reference: true",
        lambda config: config.evaluate.reference or "hlf" in config.model.names,
    ),
    ("export.hls4ml", "hlf among model.names", lambda config: "hlf" in config.model.names),
    ("export.hls4ml_bits", "export.hls4ml: true", lambda config: config.export.hls4ml),
    ("simulate", "simulate.processes", lambda config: config.simulate.processes),
    (
        "simulate.pile_up.pool simulate.pile_up.beam_spot_mm",
        "simulate.pile_up.mean above 0",
        lambda config: config.simulate.pile_up.mean,
    ),
    (
        " ".join(
            f"simulate.lepton_filter.{key}" for key in ("max_eta", "max_isolation", "thinning")
        ),
        "simulate.lepton_filter.min_pt above 0",
        lambda config: config.simulate.lepton_filter.min_pt,
    ),
)
_NEEDS: Final = [
    Needs(key, needed, is_met) for keys, needed, is_met in _NEEDS_BY_KEYS for key in keys.split()
]
_NEEDS_OF_SAMPLE: Final = (
    Needs("sum_of_weights", "cross_section_pb", lambda sample: sample.cross_section_pb is not None),
)


def check_consistency(config: Any) -> None:
    """Refuse a `Config` whose sections do not fit each other, or whose keys have no effect.

    All reasons are collected first; the message has a line for each.

    Raises:
        ValueError: There is at least one reason.
    """
    reasons = [
        *_contradictions_of_samples(config),
        *_contradictions_of_classes(config),
        *_contradictions_of_columns(config),
        *_contradictions_of_sections(config),
        *_contradictions_of_trainings(config),
        *_without_effect(config, _NEEDS),
    ]
    has_rates = _has_rates(config)
    # Only rates have errors of cross-sections.
    error_needs = Needs("cross_section_error_pb", _ALL_CROSS_SECTIONS, lambda _: has_rates)
    for sample in config.samples:
        idle_keys = _without_effect(sample, [*_NEEDS_OF_SAMPLE, error_needs])
        reasons += [f"sample '{sample.name}': {reason}" for reason in idle_keys]
    if reasons:
        # The dictionary drops repeated lines and keeps their order.
        raise ValueError("\n".join(dict.fromkeys(reasons)))


def _without_effect(section: Any, needs: Sequence[Needs]) -> list[str]:
    """Return, as a list of no or one message, which keys are set although their need is not met."""
    try:
        check_keys_have_effect(section, needs)
    except ValueError as cause:
        return [str(cause)]
    return []


def _contradictions_of_samples(config: Any) -> Iterator[str]:
    """Yield what is wrong with the names, labels, weights and processes of the samples."""
    all_names = []
    for sample in config.samples:
        # A sample with `label_by` has one more name for the events of each class.
        names = {sample.name, *sample_labels(sample.name, sample.label, sample.label_by)}
        all_names += [name.casefold() for name in names]
    for sample in config.samples:
        if all_names.count(sample.name.casefold()) > 1:
            yield f"samples: the name '{sample.name}' is given twice; names must differ"
        yield from _contradictions_of_label(sample, config.classes)
        for name in sample.weights.keys() - config.ingest.weights.keys():
            yield (
                f"samples: '{sample.name}' has the weight '{name}', which is none of "
                f"ingest.weights.{nearest(name, config.ingest.weights)} Give it there for the "
                f"other samples, or as `{name}: none`"
            )
        yield from _contradictions_of_processes(sample, config)


def _contradictions_of_label(sample: SampleSettings, classes: list[str]) -> Iterator[str]:
    """Yield a message if a sample's label is no class, or its name is that of another class.

    A label is an index into `classes`. A sample with `label_by` holds several classes, so its name
    may be any.
    """
    # One label, or the highest of several.
    label = max(sample.labels)
    if label >= len(classes):
        yield (
            f"samples: '{sample.name}' has the label {label}, but classes has only {len(classes)} "
            "names, from 0"
        )
        return
    class_names = [plain(name) for name in classes]
    sample_name = plain(sample.name)
    is_other_class = sample_name in class_names and sample_name != class_names[label]
    if is_other_class and not sample.label_by:
        yield (
            f"samples: '{sample.name}' has the label of class '{classes[label]}', but the name of "
            "another class"
        )


def _contradictions_of_processes(sample: SampleSettings, config: Any) -> Iterator[str]:
    """Yield messages about unknown processes, and about a process beside other files in a sample.

    A process has a luminosity of its own, so its events cannot share a sample with others.
    """
    processes = [process.name for process in config.simulate.processes]
    for name in simulated_processes(sample):
        if name not in processes:
            yield (
                f"samples: '{sample.name}': simulate.processes has no "
                f"'{name}'.{nearest(name, processes)}"
            )
        if len(sample.files) > 1:
            yield (
                f"samples: '{sample.name}' reads {SCHEME}{name} and files of another luminosity; "
                "make two samples"
            )


def _contradictions_of_classes(config: Any) -> Iterator[str]:
    """Yield what is wrong with the names, samples, cross-sections and signal of the classes.

    Names count as equal if their letters from a to z and their digits are. Each class needs a
    sample, and cross-sections for all of its samples or for none. The signal is some of the
    classes, but not all.
    """
    all_letters = [_letters_in_branches(name) for name in config.classes]
    for label, (name, letters) in enumerate(zip(config.classes, all_letters, strict=True)):
        is_reserved = letters in {"", _letters_in_branches(_ALL_BACKGROUNDS)}
        if is_reserved or all_letters.count(letters) > 1:
            yield (
                f"classes: the name '{name}' is blank, given twice, or taken; only letters from a "
                "to z and digits count"
            )
        samples = [sample for sample in config.samples if label in sample.labels]
        if not samples:
            yield (
                f"class '{name}' (label {label}) has no samples; add one, or take it out of classes"
            )
        # Samples of this class whose cross-section is unknown.
        without = [sample.name for sample in samples if not _has_cross_section(sample)]
        if 0 < len(without) < len(samples):
            yield (
                f"class '{name}': {', '.join(without)} has no cross_section_pb, others have; give "
                "it for all or none"
            )
    signals = config.evaluate.signals
    for signal in signals:
        if signal not in config.classes:
            yield f"evaluate.signal: there is no class '{signal}'.{nearest(signal, config.classes)}"
    has_repeats = len(set(signals)) < len(signals)
    if has_repeats or len(signals) >= len(config.classes):
        yield "evaluate.signal: name each class once, and leave one for the background"


def _contradictions_of_columns(config: Any) -> Iterator[str]:
    """Yield messages about branches that are passed through, from input files to predictions.

    Such a branch may not have the name of a column of ours, and features of plugins need theirs.
    """
    passed_through = config.ingest.pass_through
    taken_names = {*COLUMNS, *events_schema().names, *_OTHER_COLUMNS}
    for name in passed_through:
        is_taken = name in taken_names or name.startswith("probability")
        if is_taken or passed_through.count(name) > 1:
            yield (
                f"ingest.pass_through: there is a column '{name}' already; name another branch, "
                "each once"
            )
    for name, feature in plugin_features().items():
        missing = [branch for branch in feature.needs if branch not in passed_through]
        if missing:
            yield (
                f"ingest.pass_through: the feature '{name}' ({feature.location}) needs "
                f"{', '.join(missing)}; add it"
            )


def _contradictions_of_sections(config: Any) -> Iterator[str]:
    """Yield contradictions between sections: folders, lepton cuts, particle lists, luminosity."""
    if _holds_code(config.run_dir.resolve()):
        yield f"run_dir: '{config.run_dir}' holds the code of the pipeline; choose another folder"
    min_pt, ingested_min_pt = config.features.min_lepton_pt, config.ingest.min_lepton_pt
    if min_pt < ingested_min_pt:
        yield (
            f"features.min_lepton_pt ({min_pt:g}) is below ingest.min_lepton_pt "
            f"({ingested_min_pt:g}), which drops these events"
        )
    networks = [name for name in config.model.names if "particles" in config.model.of(name).inputs]
    if networks and not config.features.particles:
        yield (
            f"model.names: {', '.join(networks)} needs particle lists, but features.particles is "
            "false"
        )
    has_luminosity = "integrated_luminosity" in config.features.model_fields_set
    if config.evaluate.data and not has_luminosity and _has_rates(config):
        yield (
            "evaluate.data: the simulation needs the luminosity of the data, since all samples "
            "have cross_section_pb; set features.integrated_luminosity [1/pb]"
        )


def _holds_code(folder: Path) -> bool:
    """Return whether a folder is in, or around, the code of the pipeline."""
    if folder in {ROOT, *ROOT.parents}:
        return True
    return any(folder.is_relative_to(ROOT / package) for package in PACKAGES)


def _contradictions_of_trainings(config: Any) -> Iterator[str]:
    """Yield mistakes in the training settings of each network.

    They are those of `train`, with the network's own values in `train_by_network`.

    The schedule of a network from the grid search must also suit the fewest epochs of the search.
    """
    trainings = [config.train]
    searched = [name for name in config.model.names if config.model.of(name).is_searched]
    for name in dict.fromkeys([*config.train_by_network, *searched]):
        try:
            training = config.training_of(name)
            trainings.append(training)
            if name in searched:
                yield from config.problems_of_searched_schedule(name)
        except ValidationError as cause:
            # Each mistake becomes a sentence, as for a mistake in `train`.
            sentences = []
            for mistake in cause.errors():
                _, sentence = describe_mistake(mistake, TrainSettings)
                sentences.append(sentence)
            yield f"train_by_network.{name}: {' '.join(sentences)}"
    yield from _credentials_of_launchers(trainings)
    for training in trainings:
        if training.decorrelate is not None:
            yield from _contradictions_of_decorrelation(training.decorrelate, config)


def _contradictions_of_decorrelation(
    decorrelate: DecorrelateSettings, config: Any
) -> Iterator[str]:
    """Yield a message for each name of `train.decorrelate` that is no column or no class."""
    columns = [*hlf_names(), *config.ingest.pass_through]
    if config.features.particles:
        columns.append(NUM_PARTICLES.name)
    for name in decorrelate.columns:
        if name == "label":
            yield (
                "train.decorrelate.from: the label is what the network learns to predict; name a "
                "feature, or a branch of ingest.pass_through"
            )
        elif name not in columns:
            yield (
                f"train.decorrelate.from: there is no column '{name}'.{nearest(name, columns)} A "
                "branch of the input files needs ingest.pass_through"
            )
    for key, names in (("classes", decorrelate.classes), ("signal", decorrelate.signals)):
        for name in names:
            if name not in config.classes:
                yield (
                    f"train.decorrelate.{key}: there is no class "
                    f"'{name}'.{nearest(name, config.classes)}"
                )
    if len(decorrelate.signals) >= len(config.classes):
        yield "train.decorrelate.signal: leave a class for the background"


def _credentials_of_launchers(trainings: Sequence[TrainSettings]) -> Iterator[str]:
    """Yield a message for each argument of mpirun or srun that holds the value of a credential.

    All users of a machine can see the arguments of its processes.
    """
    for training in trainings:
        for argument in training.launcher_args:
            # Finds the names in arguments such as `MY_TOKEN=x` and `--export=ALL,MY_TOKEN=x`.
            for name in re.findall(r"(?:^|[,=])([\w.-]+)=", argument):
                if holds_credential(name):
                    yield (
                        f"launcher_args: the list of processes would show '{name}'; export it and "
                        f"give its name alone (-x {name})"
                    )
