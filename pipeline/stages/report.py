"""One HTML page of the whole run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from pydantic import BaseModel, TypeAdapter
from rich.console import Console

from pipeline.config import Config
from pipeline.configuration.keys import flat_items
from pipeline.runs.fingerprint import Input
from pipeline.runs.outputs import COUNTERS, digest_of
from pipeline.runs.state_files import read_state
from pipeline.runs.version import Version
from pipeline.stages.base import Check, Context, Result, Stage, StageInputs


class _StudyTables(BaseModel):
    """The table of a comparison of optimisers, which `compare` writes for the report."""

    title: str
    heads: list[str]
    rows: list[list[str]]
    """Cells as text, row by row, in the order of `heads`."""
    workers: str
    events: str
    notes: list[str]


#: The stages on the page, in the order in which they run.
_ORDER: Final = ("ingest", "features", "gridsearch", "train", "evaluate", "export")
_COMPARISON: Final = TypeAdapter(_StudyTables)


class Report(Stage):
    """Writes `report.html`; see `pipeline.reporting`."""

    name: ClassVar[str] = "report"
    reads: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "ingest": ("counters/samples", "counters/weights", "counters/bad_files"),
        "features": ("dataset.json", "histograms.json", "cutflow.json", COUNTERS),
        "train": (COUNTERS,),
        "evaluate": ("*.json", "*.png", COUNTERS),
        "gridsearch": ("search.json", "plots/*.png"),
        "export": ("export.json",),
    }
    optional_upstream: ClassVar[tuple[str, ...]] = ("gridsearch", "export")

    def config_items(self, config: Config) -> dict[str, Any]:
        """The section `report`."""
        return flat_items(config.report, "report")

    def find_inputs(
        self,
        config: Config,
        current: Version | None,  # noqa: ARG002
        console: Console,  # noqa: ARG002
    ) -> StageInputs:
        """Read the tables of comparisons of optimisers that the command `compare` has written.

        The `details` of the result are the tables by study.
        """
        tables = {}
        for path in sorted(config.run_dir.glob("compare/*/table.json")):
            remedy = "Run `compare` for this study again, or remove it."
            tables[path.parent.name] = read_state(path, _COMPARISON, remedy=remedy).model_dump()
        inputs = {
            f"compare/{study}": Input(f"comparison {study}", digest_of(table))
            for study, table in tables.items()
        }
        return StageInputs(inputs, tables)

    def run(self, context: Context) -> Result:
        """Write `report.html` from the manifests and files of all stages, with its figures inside.

        The check demands that the page loads nothing from the web.
        """
        from pipeline.reporting.card import load_histograms, plot_card
        from pipeline.reporting.origin import event_origin, plot_labels
        from pipeline.reporting.page import render

        features = context.upstream["features"]
        files = context.upstream["ingest"].manifest.inputs
        section = context.config.report.model_dump(mode="json")
        # The rates are those of the cross-sections of the evaluation.
        config = {**context.upstream["evaluate"].manifest.config, "report": section}
        with context.bar("report", "figures") as bar:
            bar(0, 0, "drawing the dataset card")
            histograms = load_histograms(features.folder)
            labels = plot_labels(config, files)
            plot_card(histograms, features.config.classes, labels, context.out_dir / "card")
        section |= event_origin(config, files)._asdict()
        versions = {name: context.upstream[name] for name in _ORDER if name in context.upstream}
        comparisons = context.inputs.details
        html = render(versions, section, context.out_dir / "card", comparisons=comparisons)
        page = context.out_dir / "report.html"
        page.write_text(html, encoding="utf-8")
        loads_others = any(start in html for start in ('src="http', 'href="http', "url(http"))
        check = Check("self-contained", not loads_others, "the page loads nothing from elsewhere")
        return Result(summary=str(page), checks=[check])
