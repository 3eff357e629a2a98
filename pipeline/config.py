"""The one YAML file that configures everything: typed, checked, with overrides from the command line."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Self

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator

from features.settings import FeatureSettings
from hep_core import plugins
from hep_core.paths import expand_path
from hep_core.secrets import register_secrets
from hep_core.settings_section import SettingsSection
from ingestion.settings import IngestSettings, SampleSettings
from models.networks.registry import ModelName, NetworksSettings
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

#: A folder on object storage: bucket, and at least one name. Other servers lack the conditional requests of S3.
_STORAGE: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]+(/(?!\.\.?(?:/|$))[A-Za-z0-9_.=-]+)+/?")
#: Names of classes that say which is the signal; ttbar only among the published ones.
_SIGNALS: Final = ("signal", "sig", "s", "ttbar")
_PUBLISHED: Final = {"qcd", "ttbar", "wjets"}
#: Configs that come with the code, by name.
SHIPPED: Final = Path(__file__).parent / "configs"


def _folder_of_bucket(name: str) -> str:
    if not _STORAGE.fullmatch(name):
        # The text is not repeated: there may be credentials in it.
        raise ValueError(
            "this is no folder of a bucket: write s3://bucket/prefix with letters, digits and -_.=/, without "
            "credentials (they come from the environment), or null to keep all in run_dir"
        )
    return name.rstrip("/")


class Config(SettingsSection):
    """All settings of a run folder."""

    plugins: list[str] = Field(default=[])
    """Python files, or installed modules, with features, networks, methods and more of your own (docs/plugins.md). They
    run in every command. Relative paths start at the folder of the config."""
    run_dir: Path = Field(examples=["runs/full"])
    """Local folder for all outputs; `~` and `$NAME` are as in a shell. Relative paths in a config file start at the
    folder of the file; relative paths in a shipped config or in `--set` start at the current folder."""
    storage: Annotated[str, AfterValidator(_folder_of_bucket)] | None = Field(
        default=None, examples=["s3://bucket/experiment/night"]
    )
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
    train_by_network: dict[ModelName, dict[str, Any]] = Field(default={})
    """Values of `train` that differ for one network, for example `{particles: {epochs: 10}}`."""
    compare: dict[str, Any] = Field(default={})
    """Values of the study of `compare` that differ from its file, for example `{seeds: 3, train: {epochs: 5}}`."""
    evaluate: EvaluateSettings = EvaluateSettings()
    export: ExportSettings = ExportSettings()
    promote: PromoteSettings = PromoteSettings()
    mlflow: MlflowSettings = MlflowSettings()
    report: ReportSettings = ReportSettings()
    spark: SparkSettings = SparkSettings()
    notify: list[str] = Field(default=[], examples=[["tell-the-shift", "--channel", "trigger"]])
    """A program with its arguments: it gets the outcome of each command that holds the run folder, as JSON on its
    standard input, for example to send a mail after a night."""

    @property
    def signals(self) -> list[str]:
        """Names of the classes that are the signal: those that are set, or the only one with an obvious name."""
        names = {plain(name): name for name in self.classes}
        named = [names[each] for each in _SIGNALS if each in names]
        # The top quark is a background of many searches.
        is_known = len(named) == 1 and ("ttbar" not in names or names.keys() <= _PUBLISHED)
        if self.evaluate.signal is None and not is_known:
            raise ConfigError(
                f"evaluate.signal is not set, and the names of the classes do not say which one is the signal. Set it "
                f"to one or some of: {', '.join(self.classes)}."
            )
        return self.evaluate.signals or named[:1]

    @property
    def trigger_luminosity(self) -> float | None:
        """Instantaneous luminosity of trigger rates [1/(cm2 s)]; None for an offline analysis, which counts events."""
        if self.evaluate.luminosity is not None:
            return self.evaluate.luminosity
        states_luminosity = "integrated_luminosity" in self.features.model_fields_set
        return None if self.evaluate.data or states_luminosity else USUAL_LUMINOSITY

    @field_validator("run_dir", mode="before")
    @classmethod
    def _run_dir_is_local(cls, value: object) -> object:
        return local_folder(value) if isinstance(value, str | Path) else value

    @model_validator(mode="after")
    def _sections_fit_each_other(self) -> Self:
        check_consistency(self)
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


def _take_plugins() -> None:
    """Networks and methods of plugins are sections of the config."""
    Config.model_rebuild(force=True)


plugins.after_loading(_take_plugins)


class LoadedConfig(NamedTuple):
    """A config, and the sources of its values."""

    config: Config
    given: list[ConfigSource]
    """The file, and the options."""

    def source(self, keys: Keys) -> str:
        """The source of a value: the last `--set` that gives it or a part of it, the file, or `default`."""
        return source_of(keys, self.given)


def load_config(name: str, overrides: Sequence[str] = ()) -> Config:
    """Read a config; see `load`."""
    return load(name, overrides).config


def load(name: str, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read a config.

    `name` is the path of a YAML file, or the name of a shipped one (`demo`); an override is `a.b=c`, and c is read as
    YAML.
    """
    path = find_config(name)
    # Relative paths in a config that comes with the code start at the current folder.
    is_shipped = path.resolve().parent == SHIPPED.resolve()
    folder = "" if is_shipped or path.parent.resolve() == Path.cwd() else path.parent
    content = read_mapping(path)
    locate_paths(content, folder, str(path))
    given = [ConfigSource((), copy.deepcopy(content), path.name if is_shipped else str(path))]
    # They add sections, in which the other options may set keys.
    of_plugins = [each for each in overrides if re.match(r"plugins\s*=", each)]
    given += [apply_override(content, each, Config) for each in of_plugins]
    _load_plugins(content, "" if of_plugins else folder)
    given += [apply_override(content, each, Config) for each in overrides if each not in of_plugins]
    locate_paths(content, "", "--set")
    try:
        config = Config.model_validate(content)
    except ValidationError as cause:
        raise ConfigError(explain(cause, Config, place=str(path), overrides=given[1:])) from None
    register_secrets(config.model_dump())
    return LoadedConfig(config, given)


def _load_plugins(content: dict[str, Any], folder: Path | str) -> None:
    """Import the plugins of a config before it is read, and write out their paths."""
    named = content.get("plugins", [])
    if not isinstance(named, list) or not all(isinstance(each, str) for each in named):
        raise ConfigError("plugins: give a list of Python files or modules, such as [mine.py].")
    if named:
        content["plugins"] = named = [plugins.absolute_name(each, folder) for each in named]
    if others := [each for each in plugins.loaded() if each not in named]:
        raise ConfigError(
            f"plugins: this process has loaded {', '.join(others)} already. Start another one."
        )
    plugins.load(named)


def find_config(name: str) -> Path:
    """The file of a config, given by path or by the name of a shipped config."""
    if (path := Path(expand_path(name))).is_file():
        return path
    shipped = {path.stem: path for path in SHIPPED.glob("*.yaml")}
    if name in shipped:
        return shipped[name]
    near = [*shipped, *(each.name for each in path.parent.glob("*.y*ml"))]
    raise ConfigError(
        f"there is no config file '{path.absolute()}', and no shipped config '{name}'.{nearest(path.name, near)}"
    )
