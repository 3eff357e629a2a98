"""The dataset card: what is on its axes."""

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


def made_histograms(kind_name: str, *, events: int = 500) -> dict[str, hist.Hist[Any]]:
    """Histograms of a kind of features, of two classes."""
    rng = np.random.default_rng(1)
    created: dict[str, hist.Hist[Any]] = {}
    for name, (_, binning) in histogrammed_features().items():
        if not name.startswith(f"{kind_name}."):
            continue
        classes = hist.axis.Integer(0, 2, flow=False)
        created[name] = hist.Hist(
            hist.axis.Regular(binning.bins, binning.low, binning.high),
            classes,
            hist.storage.Weight(),
        )
        width = binning.high - binning.low
        created[name].fill(
            rng.normal(binning.low + 0.3 * width, 0.2 * width, events), rng.integers(0, 2, events)
        )
    return created


@pytest.mark.slow
@pytest.mark.parametrize("kind_name", ["hlf", "particles"])
def test_distributions_lie_inside_axes_with_physicists_names(kind_name: str) -> None:
    created = made_histograms(kind_name)
    labelled = PlotLabels("", "technical sample", 13)
    figure = plot_distributions(created, ["QCD", "ttbar"], labelled)
    assert data_outside_axes(figure) == []
    assert style_faults(lambda: plot_distributions(created, ["QCD", "ttbar"], labelled)) == []
    assert figure.get_size_inches()[0] == WIDTH
    labels = [axes.get_xlabel() for axes in figure.axes if axes.axison]
    assert labels[0] == ("$H_T$ [GeV]" if kind_name == "hlf" else "Energy [GeV]")
    scales = ["log" if histogrammed_features()[name][1].log else "linear" for name in created]
    assert [axes.get_yscale() for axes in figure.axes if axes.axison] == scales
    assert not any("_" in label.replace("$", "").replace("_T", "") for label in labels)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["QCD", "ttbar"]
    # Axes of jets and charges had ticks between whole numbers.
    ticks = {axis.get_xlabel(): axis.get_xticks() for axis in figure.axes if axis.axison}
    assert all(
        tick % 1 == 0
        for label in ticks
        for tick in ticks[label]
        if label.startswith(("Number", "Lepton is an", "Lepton charge"))
    )


def test_features_without_a_distribution_have_no_panel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    created = made_histograms("hlf")
    isolations = [name for name in created if "_iso_" in name]
    for name in isolations:
        created[name].reset()
        created[name].fill(np.zeros(50), np.zeros(50, np.int64))
    created["hlf.ht"].reset()
    created["hlf.ht"].fill(np.full(50, 1e9), np.zeros(50, np.int64))
    displayed: list[str] = []

    def note(histograms: dict[str, hist.Hist[Any]], *_: object) -> None:
        displayed.extend(histograms)

    monkeypatch.setattr("pipeline.reporting.card.plot_distributions", note)
    monkeypatch.setattr("pipeline.reporting.card.save_figure", lambda *_: None)
    plot_card(created, ["QCD", "ttbar"], PlotLabels("", "", None), tmp_path / "card")
    assert len(isolations) == 3
    assert set(displayed) == created.keys() - {*isolations, "hlf.ht"}


@pytest.mark.slow
def test_a_dataset_without_particles_ended_the_report_as_a_bug(tmp_path: Path) -> None:
    created = made_histograms("hlf") | made_histograms("particles", events=0)
    plot_card(created, ["QCD", "ttbar"], PlotLabels("", "technical sample", 13), tmp_path / "card")
    assert {path.name for path in (tmp_path / "card").iterdir()} == {"hlf.png", "hlf.pdf"}
