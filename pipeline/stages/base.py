"""What a stage is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from rich.console import Console

from pipeline.config import Config
from pipeline.machine.doctor import Need
from pipeline.machine.spark_session import SparkProvider
from pipeline.runs.fingerprint import Input
from pipeline.runs.outputs import content_digest
from pipeline.runs.store import Version
from pipeline.terminal.progress import Bar

if TYPE_CHECKING:
    from pyspark import SparkContext


class Check(NamedTuple):
    """Something that must hold of a result before it is published."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a stage says of its output."""

    summary: str
    """One line for the terminal."""
    counters: dict[str, Any] = field(default_factory=dict)
    """Numbers that add up."""
    checks: list[Check] = field(default_factory=list)
    """All must pass."""
    inputs: list[dict[str, Any]] = field(default_factory=list)
    """Details of what was read, for the manifest."""
    own_inputs: dict[str, Input] | None = None
    """What was really read, where that may differ from what `find_inputs` found."""


class StageInputs(NamedTuple):
    """What a stage reads besides the output of other stages."""

    inputs: dict[str, Input]
    """By identity, for the fingerprint."""
    details: Any = None
    """Whatever the stage's own `run` wants to know of them, so that it need not look again."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a stage gets to work with."""

    config: Config
    upstream: Mapping[str, Version]
    """Current versions of the stages it reads from."""
    current: Version | None
    """Its own version in use, of which unchanged parts may be taken over."""
    missing: frozenset[str]
    """Files of that which are gone or changed, by path below its folder."""
    taken_over_parts: frozenset[str]
    """Parts that stand in `out_dir` as in the version in use, since nothing that they depend on changed."""
    found: StageInputs
    """What `find_inputs` found."""
    out_dir: Path
    """Its new version folder."""
    spark: SparkProvider
    console: Console

    def refuse_load_test(self) -> None:
        """See `Config.refuse_load_test`."""
        self.config.refuse_load_test(self.upstream["features"].manifest["counters"]["load_test"])

    def start_spark(self) -> SparkContext:
        """The running context; starting it takes seconds, which the user sees."""
        with self.bar("Spark", "") as bar:
            bar(0, 0, "starting")
            return self.spark.context()

    def bar(self, label: str, unit: str) -> Bar:
        """A progress bar."""
        return Bar(self.console, label, unit)


class Part(NamedTuple):
    """Something that a stage makes by itself, in a folder of its name, such as a network of `train`.

    While nothing that it depends on changes, it is taken over into the stage's next version.
    """

    config_items: dict[str, Any]
    """The config keys that it depends on."""
    entry_points: tuple[str, ...]
    """Modules whose import closure it runs."""
    upstream: tuple[str, ...]
    """Stages whose output it reads."""


class Stage(ABC):
    """One step of the pipeline."""

    name: ClassVar[str]
    reads: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Stages whose output it reads, and patterns of the files there; see `pipeline.runs.outputs.content_digest`."""
    optional_upstream: ClassVar[tuple[str, ...]] = ()
    """Stages whose output it reads if it exists and belongs to the same inputs as the rest."""
    needs: ClassVar[tuple[Need, ...]] = ()
    """What `doctor` checks before it starts."""

    def is_wanted(self, config: Config) -> bool:  # noqa: ARG002
        """Whether `run` includes it."""
        return True

    def upstream_of(self, config: Config) -> tuple[str, ...]:  # noqa: ARG002
        """Stages whose output it needs, under this config."""
        return tuple(name for name in self.reads if name not in self.optional_upstream)

    def entry_points(self, config: Config) -> tuple[str, ...]:  # noqa: ARG002
        """Modules whose import closure it runs; a change of what they mean makes it stale."""
        return (f"pipeline.stages.{self.name}",)

    def parts(self, config: Config) -> dict[str, Part]:  # noqa: ARG002
        """What it makes one by one, by name."""
        return {}

    def content_read(self, version: Version) -> str:
        """Digest of what it reads of a version of a stage."""
        return content_digest(version.files, version.manifest["counters"], self.reads[version.manifest["stage"]])

    @abstractmethod
    def config_items(self, config: Config) -> dict[str, Any]:
        """The config keys that its result depends on, but for those of its parts."""

    def find_inputs(self, config: Config, current: Version | None, console: Console) -> StageInputs:  # noqa: ARG002
        """What it reads besides the output of other stages.

        Args:
            config: The config.
            current: The version in use, whose manifest may spare opening files again.
            console: For a progress bar.
        """
        return StageInputs({})

    def remembered(self, found: StageInputs) -> list[dict[str, Any]] | None:  # noqa: ARG002
        """Details of unchanged inputs to keep in the manifest instead of those it has, if there are any."""
        return None

    def complete(self, config: Config, current: Version, console: Console) -> None:  # noqa: B027
        """Add what a config asks for besides the result to a version that is up to date.

        Args:
            config: The config.
            current: The version.
            console: For a line about what was added.
        """

    def can_continue(self, folder: Path) -> bool:  # noqa: ARG002
        """Whether `run` would continue what an interrupted run left in its version folder."""
        return False

    def taken_over(self, context: Context) -> list[Path]:  # noqa: ARG002
        """Files of its version in use that `run` will take over as hard links, which take no space."""
        return []

    @abstractmethod
    def run(self, context: Context) -> Result:
        """Do the work, writing into `context.out_dir` only."""
