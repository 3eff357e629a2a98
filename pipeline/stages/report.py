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


class _Comparison(BaseModel):
    """The table of a comparison of optimisers, which `compare` writes for the report."""

    title: str
    heads: list[str]
    rows: list[list[str]]
    workers: str
    events: str
    notes: list[str]


_COMPARISON: Final = TypeAdapter(_Comparison)


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

    def find_inputs(self, config: Config, current: Version | None, console: Console) -> StageInputs:  # noqa: ARG002
        """The tables of the comparisons of optimisers in the run folder. Details: them, by study."""
        tables = {}
        for path in sorted(config.run_dir.glob("compare/*/table.json")):
            remedy = "Run `compare` for this study again, or remove it."
            tables[path.parent.name] = read_state(path, _COMPARISON, remedy=remedy).model_dump()
        inputs = {
            f"compare/{name}": Input(f"comparison {name}", digest_of(each))
            for name, each in tables.items()
        }
        return StageInputs(inputs, tables)

    def run(self, context: Context) -> Result:
        """Render the page from the manifests."""
        from pipeline.reporting.card import load_histograms, plot_card
        from pipeline.reporting.origin import event_origin, plot_labels
        from pipeline.reporting.page import render

        features = context.upstream["features"]
        section = context.config.report.model_dump(mode="json")
        # The rates are those of the cross-sections then.
        config = {**context.upstream["evaluate"].manifest.config, "report": section}
        files = context.upstream["ingest"].manifest.inputs
        with context.bar("report", "figures") as bar:
            bar(0, 0, "drawing the dataset card")
            plot_card(
                load_histograms(features.folder),
                features.config.classes,
                plot_labels(config, files),
                context.out_dir / "card",
            )
        section |= event_origin(config, files)._asdict()
        # In the order in which they run.
        order = ("ingest", "features", "gridsearch", "train", "evaluate", "export")
        versions = {name: context.upstream[name] for name in order if name in context.upstream}
        html = render(
            versions, section, context.out_dir / "card", comparisons=context.inputs.details
        )
        page = context.out_dir / "report.html"
        page.write_text(html, encoding="utf-8")
        outside = [word for word in ('src="http', 'href="http', "url(http") if word in html]
        return Result(
            summary=str(page),
            checks=[Check("self-contained", not outside, "the page loads nothing from elsewhere")],
        )
