"""The figures of the dataset card."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hist
import numpy as np
import pytest
from drawn_figures import data_outside_axes, style_faults

from features.distributions import histogrammed_features
from models.evaluation.style import WIDTH, PlotLabels
from pipeline.reporting.card import plot_card, plot_distributions

CLASSES = ["QCD", "ttbar"]
LABELS = PlotLabels("", "technical sample", 13)


def example_histograms(prefix: str, *, num_events: int = 500) -> dict[str, hist.Hist[Any]]:
    """Histograms of the features of a prefix, of two classes."""
    rng = np.random.default_rng(1)
    histograms: dict[str, hist.Hist[Any]] = {}
    for name, (_, binning) in histogrammed_features().items():
        if not name.startswith(f"{prefix}."):
            continue
        width = binning.high - binning.low
        values = rng.normal(binning.low + 0.3 * width, 0.2 * width, num_events)
        histograms[name] = hist.Hist(
            hist.axis.Regular(binning.bins, binning.low, binning.high),
            hist.axis.Integer(0, 2, flow=False),
            hist.storage.Weight(),
        )
        histograms[name].fill(values, rng.integers(0, 2, num_events))
    return histograms


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prefix", "first_label"), [("hlf", "$H_T$ [GeV]"), ("particles", "Energy [GeV]")]
)
def test_distributions_lie_inside_axes_with_physicists_names(prefix: str, first_label: str) -> None:
    histograms = example_histograms(prefix)

    figure = plot_distributions(histograms, CLASSES, LABELS)

    assert data_outside_axes(figure) == []
    assert style_faults(lambda: plot_distributions(histograms, CLASSES, LABELS)) == []
    assert figure.get_size_inches()[0] == WIDTH
    panels = [axes for axes in figure.axes if axes.axison]
    assert panels[0].get_xlabel() == first_label
    for axes, name in zip(panels, histograms, strict=True):
        label = axes.get_xlabel()
        _, binning = histogrammed_features()[name]
        assert "_" not in label.replace("$", "").replace("_T", "")
        assert axes.get_yscale() == ("log" if binning.log else "linear")
        if label.startswith(("Number", "Lepton is an", "Lepton charge")):
            assert all(tick % 1 == 0 for tick in axes.get_xticks())
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == CLASSES


def test_features_without_a_distribution_have_no_panel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    histograms = example_histograms("hlf")
    isolations = [name for name in histograms if "_iso_" in name]
    for name, value in (*dict.fromkeys(isolations, 0.0).items(), ("hlf.ht", 1e9)):
        # All events lie in one bin, or outside the axis.
        histograms[name].reset()
        histograms[name].fill(np.full(50, value), np.zeros(50, np.int64))
    drawn: list[str] = []
    monkeypatch.setattr(
        "pipeline.reporting.card.plot_distributions", lambda panels, *_: drawn.extend(panels)
    )
    monkeypatch.setattr("pipeline.reporting.card.save_figure", lambda *_: None)

    plot_card(histograms, CLASSES, LABELS, tmp_path / "card")

    assert len(isolations) == 3
    assert set(drawn) == histograms.keys() - {*isolations, "hlf.ht"}


@pytest.mark.slow
def test_a_dataset_without_particles_has_the_figure_of_high_level_features_alone(
    tmp_path: Path,
) -> None:
    histograms = example_histograms("hlf") | example_histograms("particles", num_events=0)

    plot_card(histograms, CLASSES, LABELS, tmp_path / "card")

    assert {path.name for path in (tmp_path / "card").iterdir()} == {"hlf.png", "hlf.pdf"}
