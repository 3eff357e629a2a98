"""The one YAML file that configures everything: typed, checked, with overrides from the command line."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from pydantic import (
    BaseModel,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from features.columns import COLUMNS
from features.settings import FeatureSettings
from ingestion.generation.settings import SCHEME, SimulateSettings
from ingestion.paths import located
from ingestion.schema import events_schema
from ingestion.secrets import keep_secret, redact
from ingestion.settings import IngestSettings, SampleSettings
from models.networks.registry import ModelName, NetworksSettings
from pipeline.configuration.credentials import variables_with_credentials
from pipeline.configuration.effects import OF_CONFIG, OF_SAMPLE
from pipeline.configuration.mistakes import explain
from pipeline.configuration.overrides import Keys, Override, put, read_override
from pipeline.configuration.paths import local_folder, locate_paths
from pipeline.configuration.sections import advice
from pipeline.configuration.shell_sections import (
    EvaluateSettings,
    ExportSettings,
    MlflowSettings,
    PromoteSettings,
    ReportSettings,
    ShellSection,
    SparkSettings,
)
from pipeline.configuration.yaml_text import read_mapping
from pipeline.errors import ConfigError, nearest
from pipeline.runs.code_meaning import PACKAGES, ROOT
from training.effects import refuse_without_effect
from training.gridsearch.settings import GridSearchSettings
from training.settings import SEEDS, TrainSettings

#: A folder on object storage: bucket, and at least one name. Other servers lack the conditional requests of S3.
_STORAGE: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]+(/(?!\.\.?(?:/|$))[\w.=-]+)+/?", re.ASCII)
#: Names of classes that say which is the signal; ttbar only among the published ones.
_SIGNALS: Final = ("signal", "sig", "s", "ttbar")
_PUBLISHED: Final = {"qcd", "ttbar", "wjets"}
#: What the evaluation calls all classes but the signal; no class has this name.
_TOGETHER: Final = "all backgrounds"
#: Configs that come with the code, by name.
SHIPPED: Final = Path(__file__).parent / "configs"


class Config(BaseModel):
    """All settings of a run folder."""

    model_config = ShellSection.model_config

    run_dir: Path = Field(examples=["runs/full"])
    """Local folder for all outputs; `~` and `$NAME` are as in a shell. Relative paths in a config file start at the
    folder of the file; relative paths in a shipped config or in `--set` start at the current folder."""
    storage: str | None = Field(default=None, examples=["s3://bucket/experiment/night"])
    """Folder on object storage for the Parquet of the stages ingest and features, `s3://bucket/prefix`, of this run
    folder alone; null for `run_dir`, where all else stays. Credentials come from the environment, as for inputs."""
    classes: list[str] = Field(min_length=2, max_length=100, examples=[["QCD", "ttbar", "W+jets"]])
    """Names of the classes, at least 2; the label of a sample is an index into this list. They differ in letters and
    digits."""
    samples: list[SampleSettings] = Field(
        min_length=1,
        examples=[
            [
                {"name": name, "label": label, "files": [f"data/{name}_*.root"]}
                for label, name in enumerate(("qcd", "ttbar", "wjets"))
            ]
        ],
    )
    """Samples: the input files of each physics process."""
    simulate: SimulateSettings = SimulateSettings()
    ingest: IngestSettings = IngestSettings()
    features: FeatureSettings = FeatureSettings()
    gridsearch: GridSearchSettings = GridSearchSettings()
    model: NetworksSettings = NetworksSettings()
    train: TrainSettings = TrainSettings()
    train_by_network: dict[ModelName, dict[str, Any]] = {}
    """Values of `train` that differ for one network, for example `{particles: {epochs: 10}}`."""
    compare: dict[str, Any] = {}
    """Values of the study of `compare` that differ from its file, for example `{seeds: 3, train: {epochs: 5}}`."""
    evaluate: EvaluateSettings = EvaluateSettings()
    export: ExportSettings = ExportSettings()
    promote: PromoteSettings = PromoteSettings()
    mlflow: MlflowSettings = MlflowSettings()
    report: ReportSettings = ReportSettings()
    spark: SparkSettings = SparkSettings()
    notify: list[str] = Field(default=[], examples=[["/opt/site/tell", "--channel", "trigger"]])
    """A program with its arguments: it gets the outcome of each command that holds the run folder, as JSON on its
    standard input, for example to send a mail after a night."""

    @model_validator(mode="after")
    def _samples_fit_classes(self) -> Self:
        plain, names = list(map(_plain, self.classes)), [sample.name.casefold() for sample in self.samples]
        for name, letters in zip(self.classes, plain, strict=True):
            if letters in {"", _plain(_TOGETHER)} or plain.count(letters) > 1:
                raise ValueError(
                    f"classes: the name '{name}' is blank, given twice, or taken; names must differ in letters and "
                    f"digits (of either case), and '{_TOGETHER}' are all classes but the signal"
                )
        for sample in self.samples:
            if names.count(sample.name.casefold()) > 1:
                raise ValueError(f"samples: the name '{sample.name}' is given twice; names must differ")
            if sample.label >= len(self.classes):
                raise ValueError(
                    f"samples: '{sample.name}' has the label {sample.label}, but classes has only "
                    f"{len(self.classes)} names (labels 0 to {len(self.classes) - 1})"
                )
            if _plain(sample.name) in set(plain) - {plain[sample.label]}:
                raise ValueError(
                    f"samples: '{sample.name}' has the label {sample.label}, that is class "
                    f"'{self.classes[sample.label]}', but has the name of another class; correct the label, the order "
                    f"of classes, or the name"
                )
        labels = {sample.label for sample in self.samples}
        for label, name in enumerate(self.classes):
            if label not in labels:
                raise ValueError(f"class '{name}' (label {label}) has no samples; add one, or take it out of classes")
        return self

    @model_validator(mode="after")
    def _simulated_samples_have_a_process(self) -> Self:
        processes = [process.name for process in self.simulate.processes]
        for sample in self.samples:
            for name in simulated_processes(sample):
                if name not in processes:
                    raise ValueError(
                        f"samples: '{sample.name}' reads {SCHEME}{name}, but simulate.processes has no '{name}'."
                        f"{nearest(name, processes)}"
                    )
                if len(sample.files) > 1:
                    raise ValueError(
                        f"samples: '{sample.name}' reads {SCHEME}{name} and other files. All events of a sample have "
                        f"one luminosity, those of different processes do not; make it a sample of its own"
                    )
        return self

    @model_validator(mode="after")
    def _normalisation_is_complete(self) -> Self:
        for sample in self.samples:
            if sample.sum_of_weights is not None and sample.cross_section_pb is None:
                raise ValueError(
                    f"samples: '{sample.name}' has sum_of_weights, but no cross_section_pb: its events count by their "
                    f"number, and the sum has no effect; give both, or none"
                )
        for label, name in enumerate(self.classes):
            samples = [sample for sample in self.samples if sample.label == label]
            without = [
                sample.name
                for sample in samples
                # The stage `simulate` gives the others theirs.
                if sample.cross_section_pb is None and not simulated_processes(sample)
            ]
            if 0 < len(without) < len(samples):
                raise ValueError(
                    f"class '{name}': {', '.join(without)} has no cross_section_pb, but other samples of the class "
                    f"have one; give it for all, or for none (they then count by their numbers of events)"
                )
        return self

    @model_validator(mode="after")
    def _columns_passed_through_are_new(self) -> Self:
        # The last ones are those of the predictions and of `features.kernel_pass.unmixed_schema`.
        taken = {*COLUMNS, *events_schema().names, "predicted", "file_uuid_high", "file_uuid_low", "hlf", "core"}
        for name in self.ingest.pass_through:
            if name in taken or name.startswith("probability") or self.ingest.pass_through.count(name) > 1:
                raise ValueError(
                    f"ingest.pass_through: there is a column '{name}' already; name another branch, each once"
                )
        return self

    @model_validator(mode="after")
    def _signal_is_a_class(self) -> Self:
        signal = self.evaluate.signal
        if signal is not None and signal not in self.classes:
            raise ValueError(f"evaluate.signal: there is no class '{signal}'.{nearest(signal, self.classes)}")
        return self

    @property
    def signal(self) -> str:
        """Name of the signal class: the one that is set, or the only one with an obvious name."""
        names = {_plain(name): name for name in self.classes}
        named = [names[each] for each in _SIGNALS if each in names]
        # The top quark is a background of many searches.
        is_known = len(named) == 1 and ("ttbar" not in names or names.keys() <= _PUBLISHED)
        if self.evaluate.signal is None and not is_known:
            raise ConfigError(
                f"evaluate.signal is not set, and the names of the classes do not say which one is the signal. Set it "
                f"to one of: {', '.join(self.classes)}."
            )
        return self.evaluate.signal or named[0]

    @field_validator("run_dir", mode="before")
    @classmethod
    def _run_dir_is_local(cls, value: object) -> object:
        return local_folder(value) if isinstance(value, str | Path) else value

    @field_validator("storage")
    @classmethod
    def _storage_is_a_prefix(cls, value: str | None) -> str | None:
        if value is not None and not _STORAGE.fullmatch(value):
            raise ValueError(
                f"'{redact(value)}' is no folder of a bucket: write s3://bucket/prefix with letters, digits and -_.=/, "
                f"without credentials (they come from the environment), or null to keep all in run_dir"
            )
        return None if value is None else value.rstrip("/")

    @model_validator(mode="after")
    def _run_dir_holds_no_code(self) -> Self:
        folder = self.run_dir.resolve()
        if folder in {ROOT, *ROOT.parents} or any(folder.is_relative_to(ROOT / name) for name in PACKAGES):
            raise ValueError(f"run_dir: '{self.run_dir}' holds the code of the pipeline; choose another folder")
        return self

    @model_validator(mode="after")
    def _set_keys_have_an_effect(self) -> Self:
        refuse_without_effect(self, OF_CONFIG)
        for sample in self.samples:
            try:
                refuse_without_effect(sample, OF_SAMPLE)
            except ValueError as cause:
                raise ValueError(f"sample '{sample.name}': {cause}") from None
        return self

    @model_validator(mode="after")
    def _selection_fits_ingest(self) -> Self:
        if self.features.min_lepton_pt < self.ingest.min_lepton_pt:
            raise ValueError(
                f"features.min_lepton_pt ({self.features.min_lepton_pt:g}) is below ingest.min_lepton_pt "
                f"({self.ingest.min_lepton_pt:g}): ingest has already dropped the events in between; lower the latter"
            )
        return self

    @model_validator(mode="after")
    def _networks_find_their_inputs(self) -> Self:
        lacking = [name for name in self.model.names if "particles" in self.model.of(name).inputs]
        if lacking and not self.features.particles:
            raise ValueError(f"model.names: {', '.join(lacking)} needs particle lists, but features.particles is false")
        return self

    @field_validator("train_by_network")
    @classmethod
    def _overrides_are_keys_of_train(cls, value: dict[ModelName, dict[str, Any]]) -> dict[ModelName, dict[str, Any]]:
        for network, changes in value.items():
            for key in changes:
                if key not in TrainSettings.model_fields:
                    raise ValueError(f"{network}: 'train' has no key '{key}'.{advice(key, TrainSettings)}")
        return value

    @model_validator(mode="after")
    def _every_network_can_be_trained(self) -> Self:
        searched = {name: min(self.gridsearch.epochs) for name in self.model.names if self.model.of(name).is_searched}
        for name in self.train_by_network.keys() | searched.keys():
            try:
                training = self.training_of(name).model_dump(exclude_unset=True)
                TrainSettings.model_validate(training | ({"epochs": searched[name]} if name in searched else {}))
            except ValidationError as cause:
                mistakes = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in cause.errors())
                where = " with the fewest gridsearch.epochs" if name in searched else ""
                raise ValueError(f"train_by_network.{name}{where}: {mistakes}") from None
        return self

    @model_validator(mode="after")
    def _launchers_get_no_credentials(self) -> Self:
        for training in (self.train, *map(self.training_of, self.train_by_network)):
            for name in variables_with_credentials(training.launcher_args):
                raise ValueError(
                    f"launcher_args: the value of '{name}' would stand in the list of processes; set it in the "
                    f"environment, and give its name alone (-x {name})"
                )
        return self

    def normalisation(self) -> dict[str, float | str | None]:
        """Dotted keys of what normalises the samples, with their values."""
        return {
            f"samples.{sample.name}.{key}": getattr(sample, key)
            for sample in self.samples
            for key in ("cross_section_pb", "sum_of_weights")
        }

    def trainings_of(self, name: ModelName) -> dict[str, TrainSettings]:
        """The settings of each training of a network, by the name of its folder; see `train.seeds`.

        The first one has the name of the network.
        """
        settings = self.training_of(name)
        further = [(settings.seed + number) % SEEDS for number in range(1, settings.seeds)]
        return {name: settings} | {
            f"{name}-seed-{seed}": settings.model_copy(update={"seed": seed}) for seed in further
        }

    def training_of(self, name: ModelName) -> TrainSettings:
        """The training settings of a network, before the results of a grid search replace some."""
        return TrainSettings.model_validate(
            {**self.train.model_dump(exclude_unset=True), **self.train_by_network.get(name, {})}
        )


def _plain(name: str) -> str:
    """What distinguishes names: letters and digits."""
    return re.sub(r"[\W_]", "", name).casefold()


def simulated_processes(sample: SampleSettings) -> list[str]:
    """The processes whose files a sample reads from the stage `simulate`."""
    return [name.removeprefix(SCHEME) for name in sample.files if name.startswith(SCHEME)]


class LoadedConfig(NamedTuple):
    """A config, and the sources of its values."""

    config: Config
    path: Path
    content: dict[str, Any]
    """Content of the file."""
    overrides: list[Override]

    def source(self, keys: Keys) -> str:
        """The source of a value: the last `--set` that gives it or a part of it, the file, or the default."""
        for override in self.overrides[::-1]:
            if override.concerns(keys) and not _gives(override.value, keys[len(override.keys) :]):
                return "default"
            if override.touches(keys):
                return override.shown
        if not _gives(self.content, keys):
            return "default"
        return self.path.name if is_shipped(self.path) else str(self.path)


def _gives(content: Any, keys: Keys) -> bool:
    """Whether a content has a value; the name alone stands for a section with this `name`."""
    for place, key in enumerate(keys):
        if isinstance(content, str) and keys[place:] == ("name",):
            return True
        items = dict(enumerate(content)) if isinstance(content, list) else content
        if not (isinstance(items, dict) and key in items):
            return False
        content = items[key]
    return True


def load_config(name: str, overrides: Sequence[str] = ()) -> Config:
    """Read a config; see `load`."""
    return load(name, overrides).config


def load(name: str, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read a config.

    `name` is the path of a YAML file, or the name of a shipped one (`demo`); an override is `a.b=c`, and c is read as
    YAML.
    """
    path = find_config(name)
    content = read_mapping(path)
    if is_shipped(path):
        _find_bundled_events(content)
    is_here = is_shipped(path) or path.parent.resolve() == Path.cwd()
    locate_paths(content, "" if is_here else path.parent, str(path))
    given = [read_override(each, Config) for each in overrides]
    whole = copy.deepcopy(content)
    for override in given:
        put(whole, override, Config)
    locate_paths(whole, "", "--set")
    try:
        config = Config.model_validate(whole)
    except ValidationError as cause:
        raise ConfigError(explain(cause, Config, place=str(path), overrides=given)) from None
    trainings = {name: config.training_of(name).model_dump() for name in config.train_by_network}
    for key in _truths_as_numbers(whole, {**config.model_dump(), "train_by_network": trainings}, ""):
        raise ConfigError(f"{path}: '{key}' is a number, not true or false.")
    keep_secret(config.model_dump())
    return LoadedConfig(config, path, content, given)


def bundled_events() -> Path:
    """The folder of the bundled events: `samples/` of a checkout, also without its path there; else that of a wheel."""
    folder = ROOT / "samples"
    if not folder.is_dir():
        folder = Path(sys.prefix) / "share" / "hep-pipeline" / "samples"
    return Path(folder.name) if folder == Path.cwd() / folder.name else folder


def _find_bundled_events(content: dict[str, Any]) -> None:
    """Replace the folder `samples` of a shipped config by that of the bundled events."""
    for sample in content.get("samples", ()):
        sample["files"] = [re.sub(r"^samples(?=/)", str(bundled_events()), file) for file in sample["files"]]


def _truths_as_numbers(given: Any, meant: Any, place: str) -> Iterator[str]:
    """Dotted keys of the values true and false that would count as 1 and 0."""
    if isinstance(given, bool):
        if type(meant) in (int, float):
            yield place.removeprefix(".")
    elif isinstance(given, (dict, list)) and isinstance(meant, type(given)):
        for key, value in given.items() if isinstance(given, dict) else enumerate(given):
            inner: Any = meant.get(key) if isinstance(meant, dict) else meant[key]
            yield from _truths_as_numbers(value, inner, f"{place}.{key}")


def find_config(name: str) -> Path:
    """The file of a config, given by path or by the name of a shipped config."""
    if (path := Path(located(name))).is_file():
        return path
    shipped = {path.stem: path for path in SHIPPED.glob("*.yaml")}
    if name in shipped:
        return shipped[name]
    raise ConfigError(
        f"there is no config file '{path.absolute()}', and no shipped config '{name}'.{nearest(name, shipped)}"
    )


def is_shipped(path: Path) -> bool:
    """Whether a config comes with the code. Its relative paths then start at the current folder."""
    return path.resolve().parent == SHIPPED.resolve()
