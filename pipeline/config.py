"""The YAML file that configures everything: typed and checked, with overrides of options."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Self

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator

from features.settings import FeatureSettings
from hep_core import plugins
from hep_core.paths import expand_path
from hep_core.secrets import register_secrets
from hep_core.settings_section import SettingsSection
from ingestion.settings import IngestSettings, SampleSettings
from models.networks.registry import AllNetworks, ModelName
from pipeline.configuration.contradictions import check_consistency, plain
from pipeline.configuration.keys import ConfigSource, Keys, apply_override, source_of
from pipeline.configuration.mistakes import explain
from pipeline.configuration.paths import local_folder, locate_paths
from pipeline.configuration.shell_sections import (
    USUAL_LUMINOSITY,
    EvaluateSettings,
    ExportSettings,
    MlflowSettings,
    PromoteSettings,
    ReportSettings,
    SparkSettings,
)
from pipeline.configuration.simulate_section import SimulateSettings
from pipeline.configuration.yaml_text import read_mapping
from pipeline.errors import ConfigError, nearest
from training.gridsearch.settings import GridSearchSettings
from training.settings import SEEDS, TrainSettings

#: A folder on object storage: bucket, and at least one name. Other servers lack the conditional
#: requests of S3.
_STORAGE: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]+(/(?!\.\.?(?:/|$))[A-Za-z0-9_.=-]+)+/?")
#: Names of classes that say which is the signal; ttbar only among the published ones.
_SIGNALS: Final = ("signal", "sig", "s", "ttbar")
_PUBLISHED: Final = {"qcd", "ttbar", "wjets"}
#: Configs that come with the code, by name.
SHIPPED: Final = Path(__file__).parent / "configs"


def _folder_of_bucket(name: str) -> str:
    """Return the folder on object storage without a slash at the end, or refuse another text."""
    if not _STORAGE.fullmatch(name):
        # The text is not repeated: there may be credentials in it.
        raise ValueError(
            "this is no folder of a bucket: write s3://bucket/prefix with letters, digits and "
            "-_.=/, without credentials (they come from the environment), or null to keep all in "
            "run_dir"
        )
    return name.rstrip("/")


class Config(SettingsSection):
    """All settings of a run folder."""

    plugins: list[str] = Field(default=[])
    """Python files, or installed modules, with features, networks, methods and more of your own
    (docs/plugins.md). They run in every command. Relative paths start at the folder of the
    config."""
    run_dir: Path = Field(examples=["runs/full"])
    """Local folder for all outputs; `~` and `$NAME` are as in a shell. Relative paths in a config
    file start at the folder of the file; relative paths in a shipped config or in `--set` start at
    the current folder."""
    storage: Annotated[str, AfterValidator(_folder_of_bucket)] | None = Field(
        default=None, examples=["s3://bucket/experiment/night"]
    )
    """Folder on object storage for the Parquet of the stages ingest and features,
    `s3://bucket/prefix`, of this run folder alone; null for `run_dir`, where all else stays.
    Credentials come from the environment, as for inputs."""
    classes: list[str] = Field(min_length=2, max_length=100, examples=[["QCD", "ttbar", "W+jets"]])
    """Names of the classes, at least 2; the label of a sample is an index into this list. They
    differ in letters from a to z or digits."""
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
    model: AllNetworks = Field(default={}, validate_default=True)
    train: TrainSettings = TrainSettings()
    train_by_network: dict[ModelName, dict[str, Any]] = Field(default={})
    """Values of `train` that differ for one network, for example `{particles: {epochs: 10}}`."""
    compare: dict[str, Any] = Field(default={})
    """Values of the study of `compare` that differ from its file, for example `{seeds: 3, train:
    {epochs: 5}}`."""
    evaluate: EvaluateSettings = EvaluateSettings()
    export: ExportSettings = ExportSettings()
    promote: PromoteSettings = PromoteSettings()
    mlflow: MlflowSettings = MlflowSettings()
    report: ReportSettings = ReportSettings()
    spark: SparkSettings = SparkSettings()
    notify: list[str] = Field(default=[], examples=[["tell-the-shift", "--channel", "trigger"]])
    """A program with its arguments: it gets the outcome of each command that holds the run folder,
    as JSON on its standard input, for example to send a mail after a night. A relative path of the
    program has a slash, such as `./mail.sh`, and starts where that of `run_dir` does."""

    @property
    def signals(self) -> list[str]:
        """Return the names of the signal classes: as set, or the only class with an obvious name.

        Obvious names are signal, sig, s and, if all classes are among the published ones, ttbar.

        Raises:
            ConfigError: None is set, and no name, or more than one, is obvious.
        """
        if self.evaluate.signals:
            return self.evaluate.signals
        class_by_plain_name = {plain(name): name for name in self.classes}
        candidates = [name for name in _SIGNALS if name in class_by_plain_name]
        # The top quark is a background of many searches, so ttbar counts only among published
        # classes.
        has_other_top = "ttbar" in candidates and not class_by_plain_name.keys() <= _PUBLISHED
        if len(candidates) != 1 or has_other_top:
            raise ConfigError(
                "evaluate.signal is not set, and the names of the classes do not say which one is "
                f"the signal. Set it to one or some of: {', '.join(self.classes)}."
            )
        return [class_by_plain_name[candidates[0]]]

    @property
    def trigger_luminosity(self) -> float | None:
        """Return the instantaneous luminosity of trigger rates [1/(cm2 s)], or None.

        None is for an offline analysis, which counts events of an integrated luminosity. An
        analysis is offline with data, or a stated integrated luminosity, unless
        `evaluate.luminosity` is set.
        """
        if self.evaluate.luminosity is not None:
            return self.evaluate.luminosity
        states_luminosity = "integrated_luminosity" in self.features.model_fields_set
        return None if self.evaluate.data or states_luminosity else USUAL_LUMINOSITY

    @field_validator("run_dir", mode="before")
    @classmethod
    def _run_dir_is_local(cls, value: object) -> object:
        """Refuse a URL as run folder; other values of text become a path."""
        return local_folder(value) if isinstance(value, str | Path) else value

    @model_validator(mode="after")
    def _sections_fit_each_other(self) -> Self:
        """Refuse sections that contradict each other."""
        check_consistency(self)
        return self

    def normalisation(self) -> dict[str, float | str | None]:
        """Return the values that normalise the samples, cross-sections and sums, by dotted key."""
        values: dict[str, float | str | None] = {}
        for sample in self.samples:
            values[f"samples.{sample.name}.cross_section_pb"] = sample.cross_section_pb
            values[f"samples.{sample.name}.sum_of_weights"] = sample.sum_of_weights
        return values

    def trainings_of(self, network: ModelName) -> dict[str, TrainSettings]:
        """Return the settings of each training of a network, by the name of its folder.

        `train.seeds` is how many trainings there are; they differ by their seed only. The first one
        has the name of the network, the others `<network>-seed-<seed>`. The signal of
        `train.decorrelate` is that of the evaluation, unless it is set.
        """
        settings = self.training_of(network)
        if settings.decorrelate is not None:
            decorrelate = settings.decorrelate.with_signals(self.signals)
            settings = settings.model_copy(update={"decorrelate": decorrelate})
        trainings = {network: settings}
        for offset in range(1, settings.seeds):
            # Seeds above the highest continue from 0.
            seed = (settings.seed + offset) % SEEDS
            trainings[f"{network}-seed-{seed}"] = settings.model_copy(update={"seed": seed})
        return trainings

    def decorrelated(self) -> tuple[list[str], list[str]]:
        """Return the columns and the classes of `train.decorrelate`, over all networks, once each.

        Both are empty if no network is trained with it.
        """
        columns: dict[str, None] = {}
        classes: dict[str, None] = {}
        for network in self.model.names:
            decorrelate = self.training_of(network).decorrelate
            if decorrelate is not None:
                columns |= dict.fromkeys(decorrelate.columns)
                classes |= dict.fromkeys(decorrelate.classes)
        return list(columns), list(classes)

    def training_of(self, network: ModelName) -> TrainSettings:
        """Return the training settings of a network, without results of a grid search.

        Its own values in `train_by_network` replace the common ones in `train`.
        """
        common_settings = self.train.model_dump(exclude_unset=True)
        own_settings = self.train_by_network.get(network, {})
        return TrainSettings.model_validate({**common_settings, **own_settings})

    def problems_of_searched_schedule(self, network: ModelName) -> Iterator[str]:
        """Yield a message for each change of the rate that the fewest epochs of a search prevent.

        Each begins with the key of the schedule: that of the network, or that of all networks.
        """
        section = "train"
        if "schedule" in self.train_by_network.get(network, {}):
            section = f"train_by_network.{network}"
        schedule = self.training_of(network).schedule
        for problem in schedule.problems(min(self.gridsearch.epochs), "gridsearch.epochs"):
            yield f"{section}.{problem}"


class LoadedConfig(NamedTuple):
    """A config, and the sources of its values."""

    config: Config
    """The checked config."""
    sources: list[ConfigSource]
    """The file, then the options."""

    def source(self, keys: Keys) -> str:
        """Return the last `--set` that gives a value or a part of it, or the file, or `default`."""
        return source_of(keys, self.sources)


def load_config(name: str, overrides: Sequence[str] = ()) -> Config:
    """Read and check a config; see `load`, which also returns the sources of its values."""
    return load(name, overrides).config


def load(name: str, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read and check a config, and keep where each value comes from.

    The file is read and its paths written out; options replace values; pydantic checks the result.
    Plugins are imported before the check, since they add keys. Secrets of the config are hidden in
    all later output.

    Args:
        name: The path of a YAML file, or the name of a shipped config (`demo`).
        overrides: Texts `a.b=c`; c is read as YAML.

    Raises:
        ConfigError: There is no such file, or something in it, or an option, is wrong.
    """
    path = find_config(name)
    # Relative paths of a shipped config, or of a file in the current folder, start there; an empty
    # folder says so.
    is_shipped = path.resolve().parent == SHIPPED.resolve()
    starts_here = is_shipped or path.parent.resolve() == Path.cwd()
    folder = "" if starts_here else path.parent
    values = read_mapping(path)
    locate_paths(values, folder, str(path))
    # The copy keeps the values of the file, since options change `values`.
    values_of_file = copy.deepcopy(values)
    source_name = path.name if is_shipped else str(path)
    sources = [ConfigSource((), values_of_file, source_name)]
    # Plugins add sections, in which the other options may set keys; so they come first.
    plugin_overrides = [text for text in overrides if re.match(r"plugins\s*=", text)]
    other_overrides = [text for text in overrides if text not in plugin_overrides]
    sources += [apply_override(values, text, Config) for text in plugin_overrides]
    plugin_folder = "" if plugin_overrides else folder
    _load_plugins(values, plugin_folder)
    sources += [apply_override(values, text, Config) for text in other_overrides]
    # Paths of the file are written out already, so this changes those of options.
    locate_paths(values, "", "--set")
    try:
        config = Config.model_validate(values)
    except ValidationError as cause:
        option_sources = sources[1:]
        message = explain(cause, Config, file=str(path), overrides=option_sources)
        raise ConfigError(message) from None
    register_secrets(config.model_dump())
    return LoadedConfig(config, sources)


def _load_plugins(values: dict[str, Any], folder: Path | str) -> None:
    """Import the plugins of a config, and replace their paths in `values` by absolute ones.

    A process can load the plugins of one config only.

    Raises:
        ConfigError: The value is no list of texts, or this process has loaded other plugins.
    """
    names = values.get("plugins", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError("plugins: give a list of Python files or modules, such as [mine.py].")
    if names:
        names = [plugins.absolute_name(name, folder) for name in names]
        values["plugins"] = names
    already_loaded = [name for name in plugins.loaded() if name not in names]
    if already_loaded:
        raise ConfigError(
            f"plugins: this process has loaded {', '.join(already_loaded)} already. Start another "
            "one."
        )
    plugins.load(names)


def find_config(name: str) -> Path:
    """Return the file of a config, given by path or by the name of a shipped config.

    Raises:
        ConfigError: There is neither; the message names a similar one.
    """
    path = Path(expand_path(name))
    if path.is_file():
        return path
    shipped = {file.stem: file for file in SHIPPED.glob("*.yaml")}
    if name in shipped:
        return shipped[name]
    files_beside = [file.name for file in path.parent.glob("*.y*ml")]
    advice = nearest(path.name, [*shipped, *files_beside])
    raise ConfigError(
        f"there is no config file '{path.absolute()}', and no shipped config '{name}'.{advice}"
    )
