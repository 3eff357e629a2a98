"""The test events with shifted energy scales, for the systematics of an evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.stages.base import Context
from pipeline.stages.evaluation_task import feature_settings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from features.dataset import FeatureDataset
    from features.kernels import EnergyScales


def shifted_test_events(
    context: Context, dataset: FeatureDataset
) -> dict[str, NDArray[np.float32]]:
    """Compute the high-level features of the test events with shifted energies.

    The ingested events are read again, their energies scaled, and the selection applied. Events
    outside the test split are left out.

    Args:
        context: The context of `evaluate`, whose config states the shifts.
        dataset: The features.

    Returns:
        Features (num_events, num_features) by the description of a shift, NaN where the selection
        rejects the shifted event. Empty if the config has no systematics.
    """
    from features.schema import identities
    from features.shifts import shifted_features

    scales = _energy_scales(context)
    if not scales:
        return {}
    ingested = context.upstream["ingest"]
    parts = [file.location(ingested.folder) for file in ingested.files_like(["events/*"])]
    test_events = identities(dataset.files("test"))
    selection = feature_settings(context.upstream["features"])
    features = shifted_features(parts, test_events, selection, list(scales.values()))
    return dict(zip(scales, features, strict=True))


def _energy_scales(context: Context) -> dict[str, EnergyScales]:
    """Return the factors on energies for each shift of `evaluate.systematics`.

    The config states relative uncertainties; each gives a shift up and one down, as in
    "jet scale +2 %".
    """
    from features.kernels import EnergyScales

    systematics = context.config.evaluate.systematics
    scales = {}
    if systematics.jet_scale:
        for shift in (systematics.jet_scale, -systematics.jet_scale):
            scales[f"jet scale {100 * shift:+g} %"] = EnergyScales(jets=1 + shift)
    if systematics.met_scale:
        for shift in (systematics.met_scale, -systematics.met_scale):
            scales[f"MET scale {100 * shift:+g} %"] = EnergyScales(met=1 + shift)
    return scales
