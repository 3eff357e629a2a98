"""What contradicts itself in a config: keys that have no effect beside the others, or do not fit them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from pydantic import ValidationError

from features.columns import COLUMNS
from features.functions import plugin_features
from hep_core.settings_section import Needs, check_keys_have_effect
from ingestion.expressions import sample_labels
from ingestion.schema import events_schema
from ingestion.settings import SampleSettings
from pipeline.configuration.credentials import holds_credential
from pipeline.configuration.mistakes import about
from pipeline.configuration.simulate_section import SCHEME
from pipeline.errors import nearest
from pipeline.runs.code_meaning import PACKAGES, ROOT
from training.settings import TrainSettings

#: What the evaluation calls all classes but the signal; no class has this name.
_TOGETHER: Final = "all backgrounds"


def plain(name: str) -> str:
    """What distinguishes names of classes: letters and digits."""
    return re.sub(r"[\W_]", "", name).casefold()


def simulated_processes(sample: SampleSettings) -> list[str]:
    """The processes whose files a sample reads from the stage `simulate`."""
    return [name.removeprefix(SCHEME) for name in sample.files if name.startswith(SCHEME)]


def _has_cross_section(sample: SampleSettings) -> bool:
    # The stage `simulate` gives its samples theirs.
    return sample.cross_section_pb is not None or bool(simulated_processes(sample))


#: Of the whole config: keys, what they act beside, and whether it has that.
_OF_CONFIG: Final = (
    (
        "features.max_tracks features.max_photons features.max_neutral_hadrons features.ordering",
        "features.particles: true",
        lambda config: config.features.particles,
    ),
    (
        "features.integrated_luminosity",
        "samples with cross_section_pb",
        lambda config: any(map(_has_cross_section, config.samples)),
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
        "evaluate.luminosity",
        "cross_section_pb of all samples",
        lambda config: all(map(_has_cross_section, config.samples)),
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
    Needs(key, beside, acts) for keys, beside, acts in _OF_CONFIG for key in keys.split()
]
#: Of each sample.
_NEEDS_OF_SAMPLE: Final = (
    Needs("cross_section_error_pb", "cross_section_pb", _has_cross_section),
    Needs("sum_of_weights", "cross_section_pb", lambda sample: sample.cross_section_pb is not None),
)


def check_consistency(config: Any) -> None:
    """Refuse a `Config` whose sections do not fit each other; the message has a line for each reason."""
    found = [
        *_of_samples(config),
        *_of_classes(config),
        *_of_sections(config),
        *_of_trainings(config),
    ]
    of_samples = (
        (sample, _NEEDS_OF_SAMPLE, f"sample '{sample.name}': ") for sample in config.samples
    )
    for section, rules, place in ((config, _NEEDS, ""), *of_samples):
        try:
            check_keys_have_effect(section, rules)
        except ValueError as cause:
            found.append(f"{place}{cause}")
    if found:
        raise ValueError("\n".join(dict.fromkeys(found)))


def _of_classes(config: Any) -> Iterator[str]:
    names = list(map(plain, config.classes))
    for label, (name, letters) in enumerate(zip(config.classes, names, strict=True)):
        if letters in {"", plain(_TOGETHER)} or names.count(letters) > 1:
            yield f"classes: the name '{name}' is blank, given twice, or taken; only letters and digits count"
        samples = [sample for sample in config.samples if label in sample.labels]
        if not samples:
            yield f"class '{name}' (label {label}) has no samples; add one, or take it out of classes"
        without = [sample.name for sample in samples if not _has_cross_section(sample)]
        if 0 < len(without) < len(samples):
            yield f"class '{name}': {', '.join(without)} has no cross_section_pb, others have; give it for all or none"
    signals = config.evaluate.signals
    for signal in signals:
        if signal not in config.classes:
            yield f"evaluate.signal: there is no class '{signal}'.{nearest(signal, config.classes)}"
    if not len(set(signals)) == len(signals) < len(config.classes):
        yield "evaluate.signal: name each class once, and leave one for the background"


def _of_samples(config: Any) -> Iterator[str]:
    classes, processes = config.classes, [process.name for process in config.simulate.processes]
    # A sample with `label_by` has other names for its events beside its own.
    names = [
        name.casefold()
        for each in config.samples
        for name in {each.name, *sample_labels(each.name, each.label, each.label_by)}
    ]
    for sample in config.samples:
        if names.count(sample.name.casefold()) > 1:
            yield f"samples: the name '{sample.name}' is given twice; names must differ"
        if (label := max(sample.labels)) >= len(classes):
            yield f"samples: '{sample.name}' has the label {label}, but classes has only {len(classes)} names, from 0"
        elif not sample.label_by and plain(sample.name) in {*map(plain, classes)} - {
            plain(classes[label])
        }:
            yield f"samples: '{sample.name}' has the label of class '{classes[label]}', but the name of another class"
        for name in sample.weights.keys() - config.ingest.weights.keys():
            yield (
                f"samples: '{sample.name}' has the weight '{name}', which is none of ingest.weights."
                f"{nearest(name, config.ingest.weights)} Give it there for the other samples, or as `{name}: none`"
            )
        for name in simulated_processes(sample):
            if name not in processes:
                yield f"samples: '{sample.name}': simulate.processes has no '{name}'.{nearest(name, processes)}"
            if len(sample.files) > 1:
                yield f"samples: '{sample.name}' reads {SCHEME}{name} and files of another luminosity; make two samples"


def _of_sections(config: Any) -> Iterator[str]:
    # The last ones are those of the predictions and of `features.kernel_pass.unmixed_schema`.
    taken = {
        *COLUMNS,
        *events_schema().names,
        "predicted",
        "file_uuid_high",
        "file_uuid_low",
        "hlf",
        "core",
    }
    passed = config.ingest.pass_through
    for name in passed:
        if name in taken or name.startswith("probability") or passed.count(name) > 1:
            yield f"ingest.pass_through: there is a column '{name}' already; name another branch, each once"
    for name, feature in plugin_features().items():
        if missing := [branch for branch in feature.needs if branch not in passed]:
            yield f"ingest.pass_through: the feature '{name}' ({feature.location}) needs {', '.join(missing)}; add it"
    folder = config.run_dir.resolve()
    if folder in {ROOT, *ROOT.parents} or any(
        folder.is_relative_to(ROOT / name) for name in PACKAGES
    ):
        yield f"run_dir: '{config.run_dir}' holds the code of the pipeline; choose another folder"
    cut, before = config.features.min_lepton_pt, config.ingest.min_lepton_pt
    if cut < before:
        yield f"features.min_lepton_pt ({cut:g}) is below ingest.min_lepton_pt ({before:g}), which drops these events"
    lacking = [name for name in config.model.names if "particles" in config.model.of(name).inputs]
    if lacking and not config.features.particles:
        yield f"model.names: {', '.join(lacking)} needs particle lists, but features.particles is false"
    are_normalised = all(map(_has_cross_section, config.samples))
    if (
        config.evaluate.data
        and are_normalised
        and "integrated_luminosity" not in config.features.model_fields_set
    ):
        yield (
            "evaluate.data: the simulation needs the luminosity of the data, since all samples have cross_section_pb; "
            "set features.integrated_luminosity [1/pb]"
        )


def _of_trainings(config: Any) -> Iterator[str]:
    model, fewest = config.model, {"epochs": min(config.gridsearch.epochs)}
    searched = {name: fewest for name in model.names if model.of(name).is_searched}
    trainings = [config.train]
    for name in dict.fromkeys([*config.train_by_network, *searched]):
        try:
            trainings.append(config.training_of(name))
            TrainSettings.model_validate(
                trainings[-1].model_dump(exclude_unset=True) | searched.get(name, {})
            )
        except ValidationError as cause:
            mistakes = " ".join(about(each, TrainSettings)[1] for each in cause.errors())
            where = " with the fewest gridsearch.epochs" if name in searched else ""
            yield f"train_by_network.{name}{where}: {mistakes}"
    # `MY_TOKEN=x` and `--export=ALL,MY_TOKEN=x`.
    words = "\n".join(word for training in trainings for word in training.launcher_args)
    for name in filter(holds_credential, re.findall(r"(?:^|[,=])([\w.-]+)=", words, re.MULTILINE)):
        yield f"launcher_args: the list of processes would show '{name}'; export it and give its name alone (-x {name})"
