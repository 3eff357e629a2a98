"""The cutflow of a run: events and sums of weights of each sample and class after each step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from features.settings import Convention, FeatureSettings, LeptonFlavour
from ingestion.expressions import samples_in
from ingestion.schema import PARTICLE_COLLECTIONS
from models.evaluation.intervals import Efficiency, WeightSums, efficiency_of_sums

#: Number of events, sum of their weights and of the squares of their weights, in the last axis.
_Sums = NDArray[np.float64]


class Yield(NamedTuple):
    """A number of events, with the sums of their weights and of the squares of their weights."""

    events: int
    weight: float
    weight2: float

    @property
    def is_uneven(self) -> bool:
        """Whether some weights differ; a common factor, such as a cross-section, is no difference."""
        return not math.isclose(self.weight**2, self.events * self.weight2, rel_tol=1e-9)


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


def labels_by_sample(samples: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The class of each sample of a config; one with `label_by` is a sample for each class."""
    parts = (samples_in(each["name"], each["label"], each.get("label_by", {})) for each in samples)
    return {name: label for each in parts for name, label in each.items() if label is not None}


def uncertain_mixtures(config: Mapping[str, Any]) -> list[str]:
    """A sentence about each class of several samples without cross-sections."""
    found = []
    for label, name in enumerate(config["classes"]):
        samples = [
            sample for sample in config["samples"] if label in labels_by_sample([sample]).values()
        ]
        if len(samples) > 1 and any(sample["cross_section_pb"] is None for sample in samples):
            names = ", ".join(sample["name"] for sample in samples)
            found.append(
                f"Class {name}: {names} do not all have a cross_section_pb and count by their numbers of events."
            )
    return found


def cutflow(
    ingested: Mapping[str, Any],
    selected: Mapping[str, Any],
    config: Mapping[str, Any],
    *,
    by_class: bool = False,
) -> list[Step]:
    """Steps from `in the files` to `selected`."""
    labels = labels_by_sample(config["samples"])
    columns = {
        name: config["classes"][label] if by_class else name for name, label in labels.items()
    }
    generated, sums = (
        {column: np.zeros(shape) for column in columns.values()} for shape in (3, (1, 3))
    )
    for sample, column in columns.items():
        generated[column] = generated[column] + _generated(ingested, selected, sample)
        sums[column] = sums[column] + _sums(ingested, selected, config, sample)
    totals = {column: _yield(each) for column, each in generated.items()}
    first = {column: _unweighted(_yield(each[0])) for column, each in sums.items()}
    steps = []
    for row, name in enumerate(_step_names(config)):
        yields = {column: _yield(each[row]) for column, each in sums.items()}
        counts = {column: _unweighted(each) for column, each in yields.items()}
        steps.append(Step(name, yields, _relative(counts, first), _relative(yields, totals)))
    return steps


def _yield(sums: _Sums) -> Yield:
    return Yield(int(sums[0]), float(sums[1]), float(sums[2]))


def _relative(
    yields: Mapping[str, Yield], totals: Mapping[str, Yield]
) -> dict[str, Efficiency | None]:
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

    def shares(**kinds: Efficiency | None) -> dict[str, Any]:
        return {kind: each and each._asdict() for kind, each in kinds.items()}

    return [
        {
            "step": step.name,
            "columns": {
                name: each._asdict()
                | shares(
                    efficiency=step.efficiencies[name], weighted_efficiency=step.weighted[name]
                )
                for name, each in step.yields.items()
            },
        }
        for step in steps
    ]


def _unweighted(each: Yield) -> Yield:
    return Yield(each.events, float(each.events), float(each.events))


def applied_cuts(features: Mapping[str, Any], files: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The section `features` without a cut on isolation, if the files have no particles to compute one from."""
    lacks = any(
        field.startswith(PARTICLE_COLLECTIONS)
        for each in files
        for field in each["missing_optional"]
    )
    return {**features, "max_lepton_isolation": None} if lacks else dict(features)


def selection(config: Mapping[str, Any]) -> str:
    """What the selected events have, in words: the cuts of the cutflow."""
    return ", ".join(name.removeprefix("... ") for name in _step_names(config)[2:-1])


def _cuts(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Counter of the rejected events, and words, of each cut of the features that can reject some."""
    loose, cuts = (
        config["ingest"]["min_lepton_pt"],
        FeatureSettings.model_validate(config["features"]),
    )
    found = []
    if cuts.convention is Convention.SPARKDLTRIGGER:
        found.append(("rejected_lacks_a_kind", "a track, a photon and a neutral hadron"))
    if (
        set(cuts.lepton_flavours) != set(LeptonFlavour)
        or cuts.min_lepton_pt != loose
        or cuts.max_lepton_abs_eta
    ):
        kinds = " or ".join(
            {"electron": "e", "muon": "mu"}[flavour] for flavour in cuts.lepton_flavours
        )
        eta = f", |eta| < {cuts.max_lepton_abs_eta:g}" if cuts.max_lepton_abs_eta else ""
        found.append(
            (
                "rejected_no_lepton_in_acceptance",
                f"... {kinds} with pT > {cuts.min_lepton_pt:g} GeV{eta}",
            )
        )
    if cuts.max_lepton_isolation:
        found.append(
            ("rejected_no_isolated_lepton", f"... with isolation < {cuts.max_lepton_isolation:g}")
        )
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


def _of(counters: Mapping[str, Any], sample: str, step: str) -> _Sums:
    return np.array(
        [counters["samples"][sample][step], *counters["weights"][sample][step]], np.float64
    )


def _generated(ingested: Mapping[str, Any], selected: Mapping[str, Any], sample: str) -> _Sums:
    """All generated events of a sample; those that were not read have the mean weight of the others."""
    factor, stated = (
        selected["normalisation"][sample].get(key) for key in ("factor", "stated_sum")
    )
    read = _of(ingested, sample, "entries") - _of(ingested, sample, "rejected_copy")
    if stated is not None:
        read = np.array([read[0], stated, read[2] * stated / read[1]])
    return read * (1, factor, factor**2)


def _sums(
    ingested: Mapping[str, Any], selected: Mapping[str, Any], config: Mapping[str, Any], sample: str
) -> _Sums:
    """Events and weights of a sample after each step, (num_steps, 3).

    They are added up from the end, since differences of large sums of weights may lose all digits.
    """
    factor = selected["normalisation"][sample]["factor"]
    last = ["selected", *(counter for counter, _ in reversed(_cuts(config)[1:]))]
    scales = np.array([1, factor, factor**2])
    entries, copies, loose, soft = (
        scales * _of(ingested, sample, step)
        for step in ("entries", "rejected_copy", "events", "rejected_no_lepton")
    )
    kept = np.cumsum([scales * _of(selected, sample, step) for step in last], axis=0)
    return np.stack([entries - copies, loose + soft, loose, *kept[::-1]])
