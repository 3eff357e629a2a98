"""The base class of stages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from rich.console import Console

from pipeline.config import Config
from pipeline.machine.doctor import Need
from pipeline.machine.spark_session import SparkProvider
from pipeline.runs.fingerprint import Input
from pipeline.runs.outputs import OutputFile, content_digest
from pipeline.runs.version import Version
from pipeline.terminal.progress import Bar

if TYPE_CHECKING:
    from pyspark import SparkContext


class Check(NamedTuple):
    """A condition on a result; the stage publishes the result only if it holds."""

    name: str
    passed: bool
    detail: str
    """The numbers that were compared, for the manifest and the error message."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """The record of a stage about its output."""

    summary: str
    """One line for the terminal."""
    counters: dict[str, Any] = field(default_factory=dict)
    """Numbers that add up."""
    checks: list[Check] = field(default_factory=list)
    """All must pass."""
    inputs: list[dict[str, Any]] = field(default_factory=list)
    """Details of the inputs, for the manifest."""
    inputs_read: dict[str, Input] | None = None
    """The inputs that were read, if they may differ from those of `find_inputs`."""
    digests: dict[str, str] = field(default_factory=dict)
    """Digests of files on object storage that are known, by path."""
    taken_over: list[OutputFile] = field(default_factory=list)
    """Files on object storage that an earlier version wrote."""


class StageInputs(NamedTuple):
    """What a stage reads besides the output of other stages."""

    inputs: dict[str, Input]
    """Inputs by identity, for the fingerprint."""
    details: Any = None
    """Details of the inputs for `run` of the stage."""
    records: list[dict[str, Any]] | None = None
    """Details for the manifest, also if nothing changed; None if there are none."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """Everything that the work of a stage needs."""

    config: Config
    upstream: Mapping[str, Version]
    """Current versions of the stages that it reads."""
    current: Version | None
    """Its version in use; unchanged parts of it may be taken over."""
    missing: frozenset[str]
    """Missing or changed files of the version in use, by path below its folder."""
    taken_over_parts: frozenset[str]
    """Unchanged parts, which `out_dir` holds already as in the version in use."""
    inputs: StageInputs
    """The result of `find_inputs`."""
    out_dir: Path
    """Its new version folder."""
    data_dir: Path
    """Where its Parquet goes: the version folder, or a folder on object storage."""
    spark: SparkProvider
    console: Console

    def start_spark(self, inputs: Iterable[str] = ()) -> SparkContext:
        """Return the running Spark, which is started if necessary while a bar shows it.

        On a cluster, executors are refused that cannot write the folder of the Parquet or do not
        see the `inputs`, which are paths or URLs.
        """
        with self.bar("Spark", "") as bar:
            show = partial(bar, 0, 0)
            show("starting")
            return self.spark.context(folder=self.data_dir, inputs=inputs, show=show)

    def say(self, text: str) -> None:
        """Print an indented line without markup."""
        self.console.print(f"  {text}", highlight=False, markup=False)

    def bar(self, label: str, unit: str) -> Bar:
        """Return a progress bar with a label; `unit` is what it counts, such as "events"."""
        return Bar(self.console, label, unit)


class Part(NamedTuple):
    """A part of a stage's output, in a folder of its name, such as a network of `train`.

    The next version of the stage takes the part over if its inputs, config keys and code are the
    same, whatever else has changed.
    """

    config_items: dict[str, Any]
    """Config keys that the part depends on."""
    entry_points: tuple[str, ...]
    """Modules that it runs, with all that they import."""
    upstream: tuple[str, ...]
    """Stages whose output it reads."""


class Stage(ABC):
    """One step of the pipeline: it reads outputs of earlier stages and makes a new version.

    The attributes and most methods say what the result depends on, by which the pipeline decides
    whether the stage must run; `run` does the work.
    """

    name: ClassVar[str]
    reads: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Stages whose output it reads, and patterns of the files there.

    See `pipeline.runs.outputs.content_digest`.
    """
    optional_upstream: ClassVar[tuple[str, ...]] = ()
    """Stages whose output it reads if it exists and belongs to the same inputs as the others."""
    volatile: ClassVar[frozenset[str]] = frozenset()
    """Keys of its JSON files and counters that differ between equal results, such as times.

    Each is a path of keys, such as `export.json/*/latency_us`, where `*` is any key or index. The
    first key is the name of the file, or `counters`.
    """
    uses_storage: ClassVar[bool] = False
    """Whether its Parquet goes to the `storage` of the config."""
    needs: ClassVar[tuple[Need, ...]] = ()
    """Needs that `doctor` checks before the stage starts."""
    wanted_by: ClassVar[str] = ""
    """The config key that asks for it, if `run` does not always include it."""

    def is_wanted(self, config: Config) -> bool:  # noqa: ARG002
        """Whether `run` includes it."""
        return True

    def upstream_of(self, config: Config) -> tuple[str, ...]:  # noqa: ARG002
        """Return the stages whose output it needs with this config, without optional ones."""
        return tuple(name for name in self.reads if name not in self.optional_upstream)

    def entry_points(self, config: Config) -> tuple[str, ...]:  # noqa: ARG002
        """Return the modules that it runs; a change in them or their imports makes it stale.

        Changes of comments and the like do not count; see `pipeline.runs.code_meaning`.
        """
        return (type(self).__module__,)

    def parts(self, config: Config) -> dict[str, Part]:  # noqa: ARG002
        """The parts of its output, by name."""
        return {}

    def content_read(self, version: Version, volatile: frozenset[str]) -> str:
        """Return a digest of the files and counters that it reads from a version.

        Args:
            version: A version of another stage.
            volatile: Keys there, such as times, that do not count; see `Stage.volatile`.
        """
        manifest = version.manifest
        patterns = self.reads[manifest.stage]
        return content_digest(manifest.outputs, manifest.counters, patterns, volatile)

    def config_items(self, config: Config) -> dict[str, Any]:  # noqa: ARG002
        """Return the config values that its result depends on, without those of its parts.

        Returns:
            Values by dotted key, such as `features.isolation_cone`.
        """
        return {}

    def find_inputs(
        self,
        config: Config,  # noqa: ARG002
        current: Version | None,  # noqa: ARG002
        console: Console,  # noqa: ARG002
    ) -> StageInputs:
        """Find what it reads besides the output of other stages, such as ROOT files.

        Args:
            config: The config.
            current: The version in use. Files that its manifest records need not be opened again.
            console: Gets messages about the files.
        """
        return StageInputs({})

    def can_continue(self, folder: Path) -> bool:  # noqa: ARG002
        """Whether `run` would continue the interrupted work in a version folder."""
        return False

    @abstractmethod
    def run(self, context: Context) -> Result:
        """Do the work; write only into `context.out_dir`, and Parquet into `context.data_dir`."""
