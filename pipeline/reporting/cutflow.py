"""The cutflow of a run: events and sums of weights of each sample and class after each step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from features.settings import Convention, FeatureSettings, LeptonFlavour
from ingestion.expressions import samples_in
from ingestion.schema import PARTICLE_COLLECTIONS
from models.evaluation.intervals import Efficiency, WeightSums, efficiency_of_sums


class Yield(NamedTuple):
    """A number of events, with the sums of their weights and of the squares of their weights."""

    events: int
    weight: float
    weight2: float

    @property
    def is_uneven(self) -> bool:
        """Whether some weights differ; a common factor, such as a cross-section, is no difference."""
        return not math.isclose(self.weight**2, self.events * self.weight2, rel_tol=1e-9)

    def plus(self, other: Yield) -> Yield:
        """Both together."""
        return Yield(self.events + other.events, self.weight + other.weight, self.weight2 + other.weight2)

    def minus(self, part: Yield) -> Yield:
        """Without a part."""
        return Yield(self.events - part.events, self.weight - part.weight, self.weight2 - part.weight2)


class Step(NamedTuple):
    """One step of the cutflow; mappings by column, that is, by sample or class."""

    name: str
    yields: dict[str, Yield]
    efficiencies: dict[str, Efficiency | None]
    """Efficiency in events, relative to the first step."""
    weighted: dict[str, Efficiency | None]
    """Efficiency in weights, relative to all generated events: those of the first step, or as `sum_of_weights` says."""


def efficiency(passed: Yield, total: Yield) -> Efficiency | None:
    """Share of the weight that passes; None if the sum of weights before the cut is 0 or less.

    Examples:
        >>> [round(end, 3) for end in efficiency(Yield(1, 1.0, 1.0), Yield(4, 4.0, 4.0)) or ()]
        [0.25, 0.042, 0.618]
    """
    if total.weight <= 0:
        return None
    failed = WeightSums(total.weight - passed.weight, max(0.0, total.weight2 - passed.weight2))
    return efficiency_of_sums(WeightSums(passed.weight, max(0.0, passed.weight2)), failed)


def scaled(each: Yield, factor: float) -> Yield:
    """The same events with weights times a factor."""
    return Yield(each.events, factor * each.weight, factor**2 * each.weight2)


def labels_of(samples: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The class of each sample of a config; one with `label_by` is a sample for each class."""
    parts = (samples_in(each["name"], each["label"], each.get("label_by", {})) for each in samples)
    return {name: label for each in parts for name, label in each.items() if label is not None}


def uncertain_mixtures(config: Mapping[str, Any]) -> list[str]:
    """A sentence about each class of several samples without cross-sections."""
    found = []
    for label, name in enumerate(config["classes"]):
        samples = [sample for sample in config["samples"] if label in labels_of([sample]).values()]
        if len(samples) > 1 and any(sample["cross_section_pb"] is None for sample in samples):
            names = ", ".join(sample["name"] for sample in samples)
            found.append(
                f"Class {name}: {names} do not all have a cross_section_pb and count by their numbers of events."
            )
    return found


def cutflow(
    ingested: Mapping[str, Any], selected: Mapping[str, Any], config: Mapping[str, Any], *, by_class: bool = False
) -> list[Step]:
    """Steps from `in the files` to `selected`."""
    labels = labels_of(config["samples"])
    columns = {name: config["classes"][label] if by_class else name for name, label in labels.items()}
    named = {name: {column: Yield(0, 0.0, 0.0) for column in columns.values()} for name in _step_names(config)}
    generated = {column: Yield(0, 0.0, 0.0) for column in columns.values()}
    for sample, column in columns.items():
        generated[column] = generated[column].plus(_generated(ingested, selected, sample))
        for name, each in zip(named, _yields(ingested, selected, config, sample), strict=True):
            named[name][column] = named[name][column].plus(each)
    first = {column: _unweighted(each) for column, each in next(iter(named.values())).items()}
    return [
        Step(
            name,
            yields,
            _relative({column: _unweighted(each) for column, each in yields.items()}, first),
            _relative(yields, generated),
        )
        for name, yields in named.items()
    ]


def _relative(yields: Mapping[str, Yield], totals: Mapping[str, Yield]) -> dict[str, Efficiency | None]:
    """Efficiencies relative to totals; that of the total itself is exactly 1."""
    found = {}
    for column, each in yields.items():
        share_of_total = efficiency(each, totals[column])
        is_exact = each == totals[column] and share_of_total is not None
        found[column] = Efficiency(1.0, 1.0, 1.0) if is_exact else share_of_total
    return found


def shows_weights(steps: Sequence[Step]) -> bool:
    """Whether weights tell more than numbers of events: they differ, or more events were generated than read."""
    whole = Efficiency(1.0, 1.0, 1.0)
    return any(each.is_uneven for step in steps for each in step.yields.values()) or any(
        each not in {whole, None} for each in steps[0].weighted.values()
    )


def as_json(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """The cutflow as JSON content; an undefined efficiency is null."""
    return [
        {
            "step": step.name,
            "columns": {
                name: {
                    **step.yields[name]._asdict(),
                    "efficiency": _json(step.efficiencies[name]),
                    "weighted_efficiency": _json(step.weighted[name]),
                }
                for name in step.yields
            },
        }
        for step in steps
    ]


def _json(each: Efficiency | None) -> dict[str, float] | None:
    return None if each is None else each._asdict()


def _unweighted(each: Yield) -> Yield:
    return Yield(each.events, float(each.events), float(each.events))


def as_applied(features: Mapping[str, Any], files: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The section `features` without a cut on isolation, if the files have no particles to compute one from."""
    lacks = any(field.startswith(PARTICLE_COLLECTIONS) for each in files for field in each["missing_optional"])
    return {**features, "max_lepton_isolation": None} if lacks else dict(features)


def selection(features: Mapping[str, Any]) -> str:
    """What the selected events have, in words.

    Examples:
        >>> selection({"lepton_flavours": ["muon"], "max_lepton_isolation": None, "max_leptons": 1, "min_jets": 2})
        'exactly 1 muon (pT > 23 GeV) and at least 2 jets (pT > 30 GeV, |eta| < 2.6)'
    """
    cuts = FeatureSettings.model_validate(features)
    lepton = [f"pT > {cuts.min_lepton_pt:g} GeV"]
    lepton += [f"|eta| < {cuts.max_lepton_abs_eta:g}"] if cuts.max_lepton_abs_eta else []
    lepton += [f"isolation < {cuts.max_lepton_isolation:g}"] if cuts.max_lepton_isolation else []
    number = f"{cuts.min_leptons} to {cuts.max_leptons}"
    if cuts.max_leptons in (None, cuts.min_leptons):
        number = f"{'exactly' if cuts.max_leptons else 'at least'} {cuts.min_leptons}"
    several = "s" if max(cuts.min_leptons, cuts.max_leptons or 0) > 1 else ""
    found = [f"{number} {' or '.join(f'{kind}{several}' for kind in cuts.lepton_flavours)} ({', '.join(lepton)})"]
    if jets := max(cuts.min_jets, cuts.min_bjets):
        bjets = f", {cuts.min_bjets} or more of them b-jets" if cuts.min_bjets else ""
        words = f"pT > {cuts.min_jet_pt:g} GeV, |eta| < {cuts.max_jet_abs_eta:g}"
        found.append(f"at least {jets} jet{'s' if jets > 1 else ''} ({words}){bjets}")
    return " and ".join(found)


def _cuts(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Counter of the rejected events, and words, of each cut of the features that can reject some."""
    loose, cuts = config["ingest"]["min_lepton_pt"], FeatureSettings.model_validate(config["features"])
    found = []
    if cuts.convention is Convention.SPARKDLTRIGGER:
        found.append(("rejected_lacks_a_kind", "a track, a photon and a neutral hadron"))
    if set(cuts.lepton_flavours) != set(LeptonFlavour) or cuts.min_lepton_pt != loose or cuts.max_lepton_abs_eta:
        kinds = " or ".join({"electron": "e", "muon": "mu"}[flavour] for flavour in cuts.lepton_flavours)
        eta = f", |eta| < {cuts.max_lepton_abs_eta:g}" if cuts.max_lepton_abs_eta else ""
        found.append(("rejected_no_lepton_in_acceptance", f"... {kinds} with pT > {cuts.min_lepton_pt:g} GeV{eta}"))
    if cuts.max_lepton_isolation:
        found.append(("rejected_no_isolated_lepton", f"... with isolation < {cuts.max_lepton_isolation:g}"))
    if cuts.min_leptons > 1 or cuts.max_leptons is not None:
        upper = "or more" if cuts.max_leptons is None else f"to {cuts.max_leptons}"
        found.append(("rejected_number_of_leptons", f"{cuts.min_leptons} {upper} of these leptons"))
    if cuts.min_jets:
        jets = f"jets with pT > {cuts.min_jet_pt:g} GeV, |eta| < {cuts.max_jet_abs_eta:g}"
        found.append(("rejected_few_jets", f"{cuts.min_jets} or more {jets}"))
    if cuts.min_bjets:
        found.append(("rejected_few_bjets", f"{cuts.min_bjets} or more of them b-jets"))
    return [*found, ("rejected_nonfinite_features", "all features finite: selected")]


def _step_names(config: Mapping[str, Any]) -> list[str]:
    lepton = f"an e or mu with pT > {config['ingest']['min_lepton_pt']:g} GeV"
    return ["in the files", "all kinematics finite", lepton, *(words for _, words in _cuts(config))]


def _generated(ingested: Mapping[str, Any], selected: Mapping[str, Any], sample: str) -> Yield:
    """All generated events of a sample; those that were not read have the mean weight of the others."""
    counts, weights = ingested["samples"][sample], ingested["weights"][sample]
    factor, stated = (selected["normalisation"][sample].get(key) for key in ("factor", "stated_sum"))
    read = Yield(counts["entries"], *weights["entries"]).minus(
        Yield(counts["rejected_copy"], *weights["rejected_copy"])
    )
    if stated is not None:
        read = Yield(read.events, stated, read.weight2 * stated / read.weight)
    return scaled(read, factor)


def _yields(
    ingested: Mapping[str, Any], selected: Mapping[str, Any], config: Mapping[str, Any], sample: str
) -> list[Yield]:
    """Events and weights of a sample after each step.

    They are added up from the end, since differences of large sums of weights may lose all digits.
    """
    factor = selected["normalisation"][sample]["factor"]

    def of(counters: Mapping[str, Any], step: str) -> Yield:
        return scaled(Yield(counters["samples"][sample][step], *counters["weights"][sample][step]), factor)

    steps = [of(selected, "selected")]
    for counter, _ in reversed(_cuts(config)[1:]):
        steps.append(steps[-1].plus(of(selected, counter)))
    loose = of(ingested, "events")
    finite = loose.plus(of(ingested, "rejected_no_lepton"))
    return [of(ingested, "entries").minus(of(ingested, "rejected_copy")), finite, loose, *reversed(steps)]
