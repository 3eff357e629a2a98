"""The cutflow of a run: events and sums of weights of each sample and class after each step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from features.settings import Convention, FeatureSettings, LeptonFlavour
from ingestion.expressions import sample_labels
from ingestion.schema import PARTICLE_COLLECTIONS
from models.evaluation.intervals import Efficiency, WeightSums, efficiency_of_sums
from pipeline.runs.counters import CutflowCounters, FeaturesCounters, IngestCounters

#: Three numbers in the last axis: events, sum of their weights, sum of the squared weights.
_Sums = NDArray[np.float64]


class Yield(NamedTuple):
    """A number of events, with the sums of their weights and of the squares of their weights."""

    events: int
    weight: float
    """Sum of the weights."""
    weight2: float
    """Sum of the squares of the weights."""

    @property
    def is_uneven(self) -> bool:
        """Return whether some weights differ from others.

        A common factor of all weights, such as a cross-section, is no difference. Equal weights w
        of N events have (N w)^2 = N (N w^2); for other weights the left side is smaller.
        """
        return not math.isclose(self.weight**2, self.events * self.weight2, rel_tol=1e-9)

    @property
    def unweighted(self) -> Yield:
        """Return the same events, each with the weight 1."""
        return Yield(self.events, float(self.events), float(self.events))


class Step(NamedTuple):
    """One step of the cutflow; mappings by column, that is, by sample or class."""

    name: str
    """The condition that events pass in this step."""
    yields: dict[str, Yield]
    """Events that pass this step and all before."""
    efficiencies: dict[str, Efficiency | None]
    """Efficiency in events, relative to the first step."""
    weighted: dict[str, Efficiency | None]
    """Efficiency in weights, relative to all generated events: those of the first step, or as
    `sum_of_weights` says."""


class Cut(NamedTuple):
    """A cut of the stage `features`."""

    counter: str
    """Name of the counter of the rejected events."""
    label: str
    """The condition in words that passing events fulfil."""


#: The efficiency of a step that loses nothing: value and both ends of the interval are 1.
_ALL: Final = Efficiency(1.0, 1.0, 1.0)


def cutflow(
    ingested: IngestCounters,
    selected: FeaturesCounters,
    config: Mapping[str, Any],
    *,
    by_class: bool = False,
) -> list[Step]:
    """Compute the cutflow: events and weights after each step from `in the files` to `selected`.

    Sums of each sample come from the counters of the stages `ingest` and `features`; a column adds
    up those of a sample or class. From the sums follow two efficiencies: one in events, relative to
    those in the files, and one in weights, relative to all generated events.

    Args:
        ingested: Counters of `ingest`.
        selected: Counters of `features`.
        config: The config as JSON content.
        by_class: Whether a column is a class; else it is a sample.
    """
    generated_sums: dict[str, _Sums] = {}
    passing_sums: dict[str, _Sums] = {}
    for sample, label in labels_by_sample(config["samples"]).items():
        column = config["classes"][label] if by_class else sample
        generated = _generated_sums(ingested, selected, sample)
        passing = _sums_after_each_step(ingested, selected, config, sample)
        generated_sums[column] = generated_sums.get(column, 0) + generated
        passing_sums[column] = passing_sums.get(column, 0) + passing

    # Arrays of sums have the shape (3,) for generated events, (steps, 3) for passing ones.
    all_generated = {column: _yield(sums) for column, sums in generated_sums.items()}
    in_files = {column: _yield(sums[0]).unweighted for column, sums in passing_sums.items()}
    steps = []
    for index, name in enumerate(_step_names(config)):
        yields = {column: _yield(sums[index]) for column, sums in passing_sums.items()}
        # With the weight 1, the efficiency is a share of events.
        counts = {column: passing.unweighted for column, passing in yields.items()}
        efficiencies = _efficiencies(counts, in_files)
        weighted = _efficiencies(yields, all_generated)
        steps.append(Step(name, yields, efficiencies, weighted))
    return steps


def labels_by_sample(samples: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return the label of each sample, an index into `classes`.

    A sample with `label_by`, whose events are of several classes, counts as a sample for each.
    """
    labels: dict[str, int] = {}
    for sample in samples:
        by_name = sample_labels(sample["name"], sample["label"], sample.get("label_by", {}))
        labels |= {name: label for name, label in by_name.items() if label is not None}
    return labels


def uncertain_mixtures(config: Mapping[str, Any]) -> list[str]:
    """List a sentence for each class of several samples without cross-sections for all of them.

    Such samples are mixed by their numbers of events, which need not be the physical proportion.
    """
    sentences = []
    for label, class_name in enumerate(config["classes"]):
        samples = [
            sample for sample in config["samples"] if label in labels_by_sample([sample]).values()
        ]
        if len(samples) > 1 and any(sample["cross_section_pb"] is None for sample in samples):
            names = ", ".join(sample["name"] for sample in samples)
            sentences.append(
                f"Class {class_name}: {names} do not all have a cross_section_pb and count by "
                "their numbers of events."
            )
    return sentences


def _yield(sums: _Sums) -> Yield:
    """Make a `Yield` of the three sums of one step."""
    return Yield(int(sums[0]), float(sums[1]), float(sums[2]))


def efficiency(passed: Yield, total: Yield) -> Efficiency | None:
    """Return the share of the weight that passes, with its interval of one standard deviation.

    None if the total weight is 0 or less, as negative weights may make it.

    Examples:
        >>> [round(end, 3) for end in efficiency(Yield(1, 1.0, 1.0), Yield(4, 4.0, 4.0)) or ()]
        [0.25, 0.042, 0.618]
    """
    if not WeightSums(total.weight, max(0.0, total.weight2)).is_positive:
        return None
    # The interval is that of two independent sums: of events that pass, and of those that fail.
    passing = WeightSums(passed.weight, max(0.0, passed.weight2))
    failing = WeightSums(total.weight - passed.weight, max(0.0, total.weight2 - passed.weight2))
    return efficiency_of_sums(passing, failing)


def _efficiencies(
    yields: Mapping[str, Yield], totals: Mapping[str, Yield]
) -> dict[str, Efficiency | None]:
    """Return efficiencies relative to totals, by column; that of the total itself is exactly 1."""
    efficiencies = {}
    for column, passed in yields.items():
        share = efficiency(passed, totals[column])
        if share is not None and passed == totals[column]:
            share = _ALL
        efficiencies[column] = share
    return efficiencies


def shows_weights(steps: Sequence[Step]) -> bool:
    """Return whether the weights of a cutflow tell more than the counts of events.

    That is so if weights differ within a column, or if not all generated events were read.
    """
    for step in steps:
        if any(passed.is_uneven for passed in step.yields.values()):
            return True
    return any(share not in {_ALL, None} for share in steps[0].weighted.values())


def as_json(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """Return the cutflow as JSON content, a list of steps; an undefined efficiency is null."""
    rows = []
    for step in steps:
        columns = {}
        for column, passed in step.yields.items():
            columns[column] = {
                **passed._asdict(),
                "efficiency": _ends(step.efficiencies[column]),
                "weighted_efficiency": _ends(step.weighted[column]),
            }
        rows.append({"step": step.name, "columns": columns})
    return rows


def _ends(interval: Efficiency | None) -> dict[str, float] | None:
    """Return an interval as `{value, low, high}`; None stays None."""
    return None if interval is None else interval._asdict()


def applied_cuts(features: Mapping[str, Any], files: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings `features`, without a cut on isolation if some files have no particles.

    Isolation is the sum over particles around a lepton, so it cannot be computed without them.
    """
    for file in files:
        # A file records which optional branches it lacks.
        if any(field.startswith(PARTICLE_COLLECTIONS) for field in file["missing_optional"]):
            return {**features, "max_lepton_isolation": None}
    return dict(features)


def selection(config: Mapping[str, Any]) -> str:
    """Return the cuts of the cutflow in words, without the requirements of finite numbers."""
    # The first two steps are no cuts on physics; the last is that features are finite.
    labels = _step_names(config)[2:-1]
    return ", ".join(label.removeprefix("... ") for label in labels)


def _step_names(config: Mapping[str, Any]) -> list[str]:
    """Return the names of all steps: three of `ingest`, then the cuts of `features`."""
    lepton = f"an e or mu with pT > {config['ingest']['min_lepton_pt']:g} GeV"
    cut_labels = [cut.label for cut in _cuts(config)]
    return ["in the files", "all kinematics finite", lepton, *cut_labels]


def _cuts(config: Mapping[str, Any]) -> list[Cut]:
    """List the cuts of the features that can reject events, in the order in which they are applied.

    A cut that the settings make ineffective is left out. A label that starts with `...` belongs to
    the lepton of the step before.
    """
    settings = FeatureSettings.model_validate(config["features"])
    cuts = []
    if settings.convention is Convention.SPARKDLTRIGGER:
        cuts.append(Cut("rejected_lacks_a_kind", "a track, a photon and a neutral hadron"))
    if _tightens_lepton(settings, ingest_min_pt=config["ingest"]["min_lepton_pt"]):
        cuts.append(Cut("rejected_no_lepton_in_acceptance", f"... {_acceptance(settings)}"))
    if settings.max_lepton_isolation:
        isolation = f"... with isolation < {settings.max_lepton_isolation:g}"
        cuts.append(Cut("rejected_no_isolated_lepton", isolation))
    if settings.min_leptons > 1 or settings.max_leptons is not None:
        upper = "or more" if settings.max_leptons is None else f"to {settings.max_leptons}"
        cuts.append(
            Cut("rejected_number_of_leptons", f"{settings.min_leptons} {upper} of these leptons")
        )
    if settings.min_jets:
        jets = f"jets with pT > {settings.min_jet_pt:g} GeV, |eta| < {settings.max_jet_abs_eta:g}"
        cuts.append(Cut("rejected_few_jets", f"{settings.min_jets} or more {jets}"))
    if settings.min_bjets:
        cuts.append(Cut("rejected_few_bjets", f"{settings.min_bjets} or more of them b-jets"))
    cuts.append(Cut("rejected_nonfinite_features", "all features finite: selected"))
    return cuts


def _tightens_lepton(settings: FeatureSettings, *, ingest_min_pt: float) -> bool:
    """Return whether `features` ask for more of a lepton than `ingest`, which takes any e or mu."""
    return (
        set(settings.lepton_flavours) != set(LeptonFlavour)
        or settings.min_lepton_pt != ingest_min_pt
        or settings.max_lepton_abs_eta is not None
    )


def _acceptance(settings: FeatureSettings) -> str:
    """Return in words which leptons are accepted, for example `e or mu with pT > 23 GeV`."""
    symbols = {"electron": "e", "muon": "mu"}
    leptons = " or ".join(symbols[flavour] for flavour in settings.lepton_flavours)
    eta = f", |eta| < {settings.max_lepton_abs_eta:g}" if settings.max_lepton_abs_eta else ""
    return f"{leptons} with pT > {settings.min_lepton_pt:g} GeV{eta}"


def _generated_sums(ingested: IngestCounters, selected: FeaturesCounters, sample: str) -> _Sums:
    """Return events, weights and squared weights of all generated events of a sample, shape (3,).

    They are those in the files without copies, times the factor that normalises the sample to its
    cross-section. If the sample states its sum of weights, the sums of weights also hold events
    that an earlier skim dropped; these are taken to have the mean weight of those in the files.
    """
    factor = selected.normalisation[sample].factor
    stated_weight = selected.normalisation[sample].stated_sum
    sums = _counter_sums(ingested, "entries", sample) - _counter_sums(
        ingested, "rejected_copy", sample
    )
    if stated_weight is not None:
        events, weight, weight2 = sums
        sums = np.array([events, stated_weight, weight2 * stated_weight / weight])
    # A factor on each weight enters sums of squares as its square.
    return sums * (1, factor, factor**2)


def _sums_after_each_step(
    ingested: IngestCounters, selected: FeaturesCounters, config: Mapping[str, Any], sample: str
) -> _Sums:
    """Return events and normalised weights of a sample after each step, shape (steps, 3).

    Counters hold the events that each cut rejects. Adding these to the selected events, from the
    last cut back, gives the events before each cut.
    """
    factor = selected.normalisation[sample].factor
    to_physics_weight = np.array([1, factor, factor**2])

    def sums(counters: CutflowCounters, step: str) -> _Sums:
        """Return the normalised sums of one counter of the sample, shape (3,)."""
        return to_physics_weight * _counter_sums(counters, step, sample)

    in_files = sums(ingested, "entries") - sums(ingested, "rejected_copy")
    with_lepton = sums(ingested, "events")
    finite = with_lepton + sums(ingested, "rejected_no_lepton")

    # Sums are only added: a difference of large sums of weights may lose all digits.
    passing = [sums(selected, "selected")]
    # Events before the first cut are those with a lepton, which the counters give.
    for cut in reversed(_cuts(config)[1:]):
        passing.append(passing[-1] + sums(selected, cut.counter))
    return np.stack([in_files, finite, with_lepton, *reversed(passing)])


def _counter_sums(counters: CutflowCounters, step: str, sample: str) -> _Sums:
    """Return events, weights and squared weights of a counter, shape (3,), not normalised."""
    events = counters.samples[sample][step]
    weights = counters.weights[sample][step]
    return np.array([events, *weights], np.float64)
