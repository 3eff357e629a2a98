"""The one YAML file that configures everything: typed, checked, with overrides from the command line."""

from __future__ import annotations

import types
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Self, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, field_validator, model_validator
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from features.settings import FeatureSettings
from ingestion.secrets import is_telling, redact_all, redact_words
from ingestion.settings import IngestSettings, SampleSettings
from models.networks.registry import ModelName, NetworksSettings
from pipeline.errors import ConfigError, nearest
from pipeline.runs.code_meaning import PACKAGES, ROOT
from pipeline.yaml_text import not_text, read_yaml
from training.gridsearch.settings import GridSearchSettings
from training.settings import TrainSettings
from training.studies.settings import CompareSettings

#: Configs that come with the code, by name.
SHIPPED: Final = Path(__file__).parent / "configs"
_LETTERS_SHOWN: Final = 500
_MISTAKES_SHOWN: Final = 20


class SparkSettings(BaseModel):
    """Where Spark runs."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    master: str = "local[*]"
    """`local[*]` (all cores of this machine), or a cluster such as `spark://host:7077`."""
    driver_memory: str = Field(default="1g", pattern=r"^[0-9]+[kmgt]$")
    """Memory of the driver's JVM; the data itself never go through it."""
    executor_python: str | None = None
    """Python on the executors of a cluster; by default the path of this one."""
    conf: dict[str, str] = {}
    """Any further Spark properties."""


class EvaluateSettings(BaseModel):
    """What is asked of an evaluation."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    signal: str | None = None
    """The class that working points keep; by default ttbar where there is such a class, else the second."""
    working_points: list[Annotated[float, Field(gt=0, lt=1)]] = Field(default=[0.90, 0.95, 0.99], min_length=1)
    """Signal efficiencies at which backgrounds and rates are told; plots against kinematics are at the first."""
    luminosity: float = Field(default=2e34, gt=0)
    """Instantaneous luminosity [1/(cm2 s)] for rates, where all samples have a cross-section."""
    reference: bool = True
    """Gradient-boosted trees on the high-level features beside the networks."""
    train_events: PositiveInt = 20_000
    """Scores are compared with those of at most so many training events."""


class PromoteSettings(BaseModel):
    """When a new model takes the place of the one in use."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    min_sigma: float = Field(default=1.0, ge=0)
    """Its mean cross-entropy on the test split is lower by more than so many standard errors of the difference."""


class MlflowSettings(BaseModel):
    """Where `track` copies the record of a training to."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    uri: str | None = None
    """Of the tracking server, such as `https://mlflow.site:5000`; not set: what MLFLOW_TRACKING_URI says."""
    experiment: str = Field(default="hep-pipeline", min_length=1)
    """Name of the experiment that the runs belong to."""


class ReportSettings(BaseModel):
    """Words on plots and in the report."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    title: str = "HEP event classifier"
    """Title of the report."""
    experiment: str = ""
    """Name of the experiment, upper left on plots."""
    sample_note: str = "Simulation"
    """What the events are, beside the experiment."""
    energy_tev: float = Field(default=13, gt=0)
    """Centre-of-mass energy [TeV]."""


class Config(BaseModel):
    """Everything that a user may choose."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    run_dir: Path
    """Folder that everything is written to; relative to the current folder."""
    classes: list[str] = Field(default=["QCD", "ttbar", "W+jets"], min_length=2, max_length=100)
    """Names of the classes; a sample's label is an index into this list."""
    samples: list[SampleSettings] = Field(min_length=1)
    """The input files by physics process."""
    ingest: IngestSettings = IngestSettings()
    features: FeatureSettings = FeatureSettings()
    gridsearch: GridSearchSettings = GridSearchSettings()
    model: NetworksSettings = NetworksSettings()
    train: TrainSettings = TrainSettings()
    train_by_network: dict[ModelName, dict[str, Any]] = {}
    """Keys of `train` that are different for one network."""
    compare: CompareSettings = CompareSettings()
    evaluate: EvaluateSettings = EvaluateSettings()
    promote: PromoteSettings = PromoteSettings()
    mlflow: MlflowSettings = MlflowSettings()
    allow_load_test: bool = False
    """Train and evaluate on a load-test sample too, whose events are copies of few: for timing only."""
    report: ReportSettings = ReportSettings()
    spark: SparkSettings = SparkSettings()

    @model_validator(mode="after")
    def _samples_fit_classes(self) -> Self:
        for name in self.classes:
            if not name.strip() or self.classes.count(name) > 1:
                raise ValueError(f"classes: the name '{name}' is blank or given twice; names must differ")
        names = [sample.name for sample in self.samples]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"samples: the name '{name}' is given twice; names must differ")
        for sample in self.samples:
            if sample.label >= len(self.classes):
                raise ValueError(
                    f"samples: '{sample.name}' has the label {sample.label}, but classes has only "
                    f"{len(self.classes)} names (labels 0 to {len(self.classes) - 1})"
                )
        labels = {sample.label for sample in self.samples}
        for label, name in enumerate(self.classes):
            if label not in labels:
                raise ValueError(f"class '{name}' (label {label}) has no samples; add one, or take it out of classes")
        return self

    @model_validator(mode="after")
    def _signal_is_a_class(self) -> Self:
        if self.signal not in self.classes:
            raise ValueError(f"evaluate.signal: there is no class '{self.signal}'.{nearest(self.signal, self.classes)}")
        return self

    @property
    def signal(self) -> str:
        """Name of the class that working points keep."""
        return self.evaluate.signal or ("ttbar" if "ttbar" in self.classes else self.classes[1])

    @model_validator(mode="after")
    def _run_dir_holds_no_code(self) -> Self:
        folder = self.run_dir.resolve()
        if folder in {ROOT, *ROOT.parents} or any(folder.is_relative_to(ROOT / name) for name in PACKAGES):
            raise ValueError(f"run_dir: '{self.run_dir}' holds the code of the pipeline; choose a folder of its own")
        return self

    @model_validator(mode="after")
    def _selection_fits_ingest(self) -> Self:
        if self.features.min_lepton_pt < self.ingest.min_lepton_pt:
            raise ValueError(
                f"features.min_lepton_pt ({self.features.min_lepton_pt:g}) is below ingest.min_lepton_pt "
                f"({self.ingest.min_lepton_pt:g}): events between the two are already gone; lower the latter"
            )
        return self

    @field_validator("train_by_network")
    @classmethod
    def _overrides_are_keys_of_train(cls, value: dict[ModelName, dict[str, Any]]) -> dict[ModelName, dict[str, Any]]:
        for network, changes in value.items():
            for key in changes:
                if key not in TrainSettings.model_fields:
                    raise ValueError(
                        f"{network}: 'train' has no key '{key}'.{nearest(key, TrainSettings.model_fields)}"
                    )
        return value

    @model_validator(mode="after")
    def _every_network_can_be_trained(self) -> Self:
        for name in self.train_by_network:
            try:
                self.training_of(name)
            except ValidationError as cause:
                mistakes = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in cause.errors())
                raise ValueError(f"train_by_network.{name}: {mistakes}") from None
        return self

    def training_of(self, name: ModelName) -> TrainSettings:
        """How a network is trained, but for what a grid search decides."""
        return TrainSettings.model_validate(
            {**self.train.model_dump(exclude_unset=True), **self.train_by_network.get(name, {})}
        )


def load_config(name: str, overrides: Sequence[str] = ()) -> Config:
    """Read a config.

    Args:
        name: Path of a YAML file, or the name of a shipped one (`demo`).
        overrides: `a.b=c` each; c is read as YAML.

    Raises:
        ConfigError: The file is not there, no YAML, or something in it is wrong; all mistakes are listed.
    """
    path = find_config(name)
    try:
        content = read_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as cause:
        raise ConfigError(f"{path} cannot be read ({cause}).") from cause
    except YAMLError as cause:
        hides = _holds_secret(cause)
        why = _where(cause) if hides else _short(str(cause))
        raise ConfigError(f"{path} is no valid YAML: {why}") from (None if hides else cause)
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must hold keys and values, such as `run_dir: runs/mine`.")
    for override in overrides:
        apply_override(content, override)
    for where in not_text(content, ""):
        raise ConfigError(f"{path}: {_short(where)} holds half a character (a surrogate), which no file can hold.")
    try:
        return Config.model_validate(content)
    except ValidationError as cause:
        raise ConfigError(_explain(cause, str(path))) from None


def find_config(name: str) -> Path:
    """The file of a config given by path or by the name of a shipped one.

    Raises:
        ConfigError: There is neither.
    """
    if Path(name).is_file():
        return Path(name)
    shipped = {path.stem: path for path in SHIPPED.glob("*.yaml")}
    if name in shipped:
        return shipped[name]
    raise ConfigError(
        f"there is no config file '{Path(name).absolute()}', and none of that name is shipped.{nearest(name, shipped)}"
    )


def apply_override(content: dict[str, Any], override: str) -> None:
    """Put `a.b=c` into nested mappings, in place; c is read as YAML.

    Raises:
        ConfigError: It is not of this form, or a part of the path is no mapping.

    Examples:
        >>> content = {"train": {"epochs": 20}}
        >>> apply_override(content, "train.epochs=3")
        >>> content
        {'train': {'epochs': 3}}
    """
    path, separator, text = override.partition("=")
    keys = path.strip().split(".")
    shown = _short(redact_words([override])[0])
    if not separator or not all(keys):
        raise ConfigError(f"--set {shown}: write it as key.subkey=value, for example --set train.epochs=5.")
    try:
        value = read_yaml(text)
    except YAMLError as cause:
        # YAML quotes the line.
        hides = shown != _short(override)
        why = _where(cause) if hides else _short(str(cause))
        raise ConfigError(f"--set {shown}: the value is no valid YAML ({why}).") from (None if hides else cause)
    if isinstance(value, str) and text.strip()[:1] not in {"'", '"'}:
        # Words are taken as they are: YAML would cut them at ' #'.
        value = text.strip()
    where = content
    for key in keys[:-1]:
        if where.get(key) is None:
            # Also where a section that is off by default stands as null.
            where[key] = {}
        where = where[key]
        if not isinstance(where, dict):
            raise ConfigError(f"--set {shown}: '{_short(key)}' holds a value, not further keys.")
    where[keys[-1]] = value


def flat_items(model: BaseModel, prefix: str) -> dict[str, Any]:
    """Dotted keys and JSON values of a section of the config, without those that only change speed.

    Examples:
        >>> flat_items(ReportSettings(title="A run"), "report")["report.title"]
        'A run'
    """
    ignored: frozenset[str] = getattr(model, "SPEED_ONLY", frozenset())
    items: dict[str, Any] = {}
    for name in type(model).model_fields:
        value = getattr(model, name)
        if name in ignored:
            continue
        if isinstance(value, BaseModel):
            items |= flat_items(value, f"{prefix}.{name}")
        else:
            items[f"{prefix}.{name}"] = model.model_dump(mode="json", include={name})[name]
    return items


def _explain(error: ValidationError, place: str) -> str:
    """All mistakes of a config, a line each: the key, what is wrong, the nearest valid name."""
    lines = []
    for mistake in error.errors():
        keys = [key for key in mistake["loc"] if not (isinstance(key, str) and key.startswith("function-"))]
        key = ".".join(str(part) for part in keys)
        if mistake["type"] == "extra_forbidden":
            lines.append(f"  unknown key '{key}'.{nearest(str(keys[-1]), _fields_at(keys[:-1]))}")
        elif mistake["type"] == "missing":
            lines.append(f"  '{key}' is missing.")
        elif mistake["type"] == "value_error":
            lines.append(f"  {key + ': ' if key else ''}{mistake['ctx']['error']}.")
        elif is_telling(key) or keys[:2] == ["spark", "conf"]:
            # Without the colon, after which the message itself would be taken for the secret.
            lines.append(f"  '{key}' (its value is not shown): {mistake['msg']}.")
        else:
            (given,) = redact_all([mistake["input"]])
            lines.append(f"  '{key}': {mistake['msg']} (given: {given!r}).")
    more = [f"  ... and {len(lines) - _MISTAKES_SHOWN} more"] if len(lines) > _MISTAKES_SHOWN else []
    shown = "\n".join([*map(_short, lines[:_MISTAKES_SHOWN]), *more])
    return f"{place} has {len(lines)} mistake{'s' if len(lines) > 1 else ''}:\n{shown}"


def _holds_secret(cause: YAMLError) -> bool:
    """Whether YAML quotes a line with a telling name; its own words may hold one too ("cannot start any token")."""
    if not isinstance(cause, MarkedYAMLError):
        return is_telling(str(cause))
    marks = [mark for mark in (cause.context_mark, cause.problem_mark) if mark is not None]
    return any(is_telling(mark.get_snippet() or "") for mark in marks)


def _where(cause: YAMLError) -> str:
    """The place of a mistake, without the line itself."""
    mark = cause.problem_mark if isinstance(cause, MarkedYAMLError) else None
    place = "" if mark is None else f" in line {mark.line + 1}, column {mark.column + 1}"
    return f"a mistake{place}, which is not shown since it may hold a secret"


def _short(words: str) -> str:
    return words if len(words) <= _LETTERS_SHOWN else f"{words[:_LETTERS_SHOWN]} ..."


def _fields_at(keys: Sequence[int | str]) -> list[str]:
    """Names of the fields of the model that a path of keys leads to."""
    model: type[BaseModel] = Config
    for key in keys:
        if isinstance(key, int):
            continue
        model = _model_of(model.model_fields[key].annotation)
    return list(model.model_fields)


def _model_of(annotation: Any) -> type[BaseModel]:
    """The model inside `Model`, `list[Model]` or `Model | None`."""
    if get_origin(annotation) in (list, Union, types.UnionType):
        inner = [part for part in get_args(annotation) if isinstance(part, type) and issubclass(part, BaseModel)]
        annotation = inner[0]
    section: type[BaseModel] = annotation
    return section
