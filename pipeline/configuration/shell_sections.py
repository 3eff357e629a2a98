"""Sections of the config: Spark, evaluation, export, promotion, tracking, report."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import Field, PositiveInt, SecretStr, field_validator

from hep_core.settings_section import SettingsSection
from pipeline.configuration.credentials import holds_credential
from pipeline.configuration.spark_masters import is_master

#: Stands for as much as the allocation of the command holds.
AUTO: Final = "auto"
#: Instantaneous luminosity of trigger rates where none is set [1/(cm2 s)].
USUAL_LUMINOSITY: Final = 2e34


class SparkSettings(SettingsSection):
    """Spark: where it runs, its memory and its properties."""

    master: str = "local[auto]"
    """Spark master: `local[auto]` for the cores of this machine that the command may use,
    `local[4]` for 4, or a cluster such as `spark://host:7077`."""
    driver_memory: str = Field(default=AUTO, pattern=rf"^([0-9]+[kmgt]|{AUTO})$")
    """Memory of the driver's JVM, for example `512m` or `4g`; `auto`: a quarter of the memory that
    the command may use, at most `2g`. The driver needs 26 bytes for each selected event; the event
    data stay on the executors."""
    executor_python: str | None = None
    """Path of Python on the executors of a cluster; null for the path of the driver's Python."""
    conf: dict[str, str | SecretStr] = Field(default={})
    """Further Spark properties. Values that Spark or Hadoop treat as secret are hidden in all
    outputs."""

    @field_validator("master")
    @classmethod
    def _is_an_address(cls, value: str) -> str:
        """Refuse a `master` that is no address of Spark."""
        if not is_master(value):
            raise ValueError(
                f"{value!r} is no Spark; write local[auto], local[4], spark://host1:7077, yarn or "
                "k8s://..."
            )
        return value

    @field_validator("conf", mode="before")
    @classmethod
    def _credentials_are_secret(cls, conf: Any) -> Any:
        """Return the properties of Spark, with credentials wrapped so that outputs hide them.

        Raises:
            ValueError: A value is no text, or options of a JVM, which other users can see, hold
                one.
        """
        if not isinstance(conf, dict):
            return conf
        hidden_conf = dict(conf)
        for name, text in conf.items():
            if not isinstance(text, str | SecretStr):
                raise ValueError(f"the value of {name} is no text; write it in quotes")  # noqa: TRY004 - for pydantic
            if isinstance(text, str) and holds_credential(f"{name} {text}"):
                hidden_conf[name] = SecretStr(text)
                # The JVM gets these options on its command line.
                if str(name).endswith("JavaOptions"):
                    raise ValueError(
                        f"the list of processes shows {name}, so it must not hold a credential"
                    )
        return hidden_conf


class SystematicsSettings(SettingsSection):
    """Relative uncertainties; each is shifted up and down, and 0 leaves it out."""

    jet_scale: float = Field(default=0.0, ge=0, lt=1)
    """Uncertainty of the pT of all jets, such as 0.02: HT and the numbers of jets are computed anew
    from the events. Neither the missing energy nor the particle list follow."""
    met_scale: float = Field(default=0.0, ge=0, lt=1)
    """Uncertainty of the missing transverse energy, such as 0.05: MET and MT follow."""


class EvaluateSettings(SettingsSection):
    """The evaluation on the test split."""

    signal: str | Annotated[list[str], Field(min_length=1)] | None = None
    """Signal class of the working points, or a list of classes that are the signal together; null
    for the only class named signal, sig or s, or for ttbar if the others are QCD or W+jets, as
    published. With other names it must be set."""
    working_points: list[Annotated[float, Field(gt=0, lt=1)]] = Field(
        default=[0.90, 0.95, 0.99], min_length=1
    )
    """Signal efficiencies at which backgrounds and rates are reported, between 0 and 1. Plots of
    the efficiency against kinematic variables use the first that can be measured."""
    background_working_points: list[Annotated[float, Field(gt=0, lt=1)]] = Field(
        default=[], examples=[[1e-3]]
    )
    """Efficiencies of all backgrounds together at which the signal that is kept is reported,
    between 0 and 1."""
    background_uncertainty: float = Field(default=0.0, ge=0, le=10)
    """Relative uncertainty of the number of background events in the Asimov significance, at least
    0."""
    fractions: Literal["rate", "equal"] = "rate"
    """Fractions f_b of the backgrounds in the score p_signal / sum f_b p_b of the working points,
    and in the background efficiency of all of them together: in proportion to their rates if all
    cross-sections are known, or equal."""
    luminosity: float | None = Field(default=None, gt=0, examples=[2e34])
    """Instantaneous luminosity for trigger rates [1/(cm2 s)]; null is 2e34, unless the analysis is
    offline: with `evaluate.data`, or a stated `features.integrated_luminosity`, the events of that
    luminosity are reported instead. Both need the cross-sections of all samples."""
    data: list[str] = Field(default=[], examples=[["data/*.root"]])
    """Paths, globs or URLs of ROOT files without labels, such as collision data: the report
    compares their inputs and scores with the simulation. Tree and branches are those of `ingest`;
    each event counts 1."""
    blind_above: float = Field(default=0.5, gt=0, lt=1)
    """Score s / (s + b) above which data are not shown; inputs are then those of the events below
    it."""
    unblind: bool = False
    """Whether to show the data of all scores."""
    reference: bool = True
    """Whether to evaluate gradient-boosted trees on the high-level features as a reference for the
    networks."""
    train_events: PositiveInt = 20_000
    """Highest number of training events in the comparison of training and test scores, at least
    1."""
    systematics: SystematicsSettings = SystematicsSettings()
    """Systematic uncertainties: the shift of the efficiencies at the working points is reported."""

    @property
    def signals(self) -> list[str]:
        """Return the classes that `signal` names, as a list; empty for null."""
        return [self.signal] if isinstance(self.signal, str) else list(self.signal or [])


class ExportSettings(SettingsSection):
    """The networks as files for a trigger."""

    hls4ml: bool = False
    """Whether to write firmware of the perceptron for FPGAs, simulated bit by bit (needs the extra
    `hls` and g++)."""
    hls4ml_bits: list[Annotated[int, Field(ge=4, le=64)]] = Field(
        default=[8, 12, 16, 24], min_length=1
    )
    """Widths of the numbers in the firmware, each 4 to 64 bits; all are compiled and compared with
    the network."""


class PromoteSettings(SettingsSection):
    """The condition under which `promote` replaces the model in use."""

    min_sigma: float = Field(default=1.0, ge=0)
    """Improvement that a new model needs to replace the model in use: the decrease of the mean
    cross-entropy on the test split, in standard errors of the difference; at least 0."""
    at_least: float | None = Field(default=None, ge=0, le=1)
    """Accuracy, in which the classes count alike, that each network needs to be put in use, also
    the first, from 0 (no floor) to 1; null: better than the best constant answer by more than its
    error, in accuracy and in mean cross-entropy, and one of `evaluate.working_points` can be
    measured."""


class MlflowSettings(SettingsSection):
    """The MLflow server to which `track` logs trainings (needs the extra `mlflow`)."""

    uri: str | None = None
    """Address of the MLflow tracking server, for example `https://mlflow.site:5000`, or a folder or
    `sqlite:///file.db`, whose relative paths start where that of `run_dir` does; null for the value
    of MLFLOW_TRACKING_URI."""
    experiment: str = Field(default="hep-pipeline", min_length=1)
    """Name of the MLflow experiment that holds the runs."""


class ReportSettings(SettingsSection):
    """Text of the report and of the plots."""

    title: str = "HEP event classifier"
    """Title of the report."""
    experiment: str = ""
    """Name of the experiment, in the upper left corner of plots."""
    sample_note: str | None = None
    """Kind of events, after the name of the experiment on plots; null for what the files say:
    `Simulation` for events of Delphes or with weights of a generator."""
    rates_note: str | None = None
    """Remark beside rates and purity, for example on the origin of the cross-sections; null for
    what the files say."""
    energy_tev: float | None = Field(default=None, gt=0)
    """Centre-of-mass energy on plots, greater than 0 [TeV]; null for what the files say: that of
    `simulate`."""
