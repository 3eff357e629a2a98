"""Keys of the config that act only beside others: elsewhere another value than the default is refused."""

from __future__ import annotations

from typing import Any, Final

from ingestion.generation.settings import SCHEME
from training.effects import Needs


def _has_cross_section(sample: Any) -> bool:
    return sample.cross_section_pb is not None or any(name.startswith(SCHEME) for name in sample.files)


#: Of the whole config.
OF_CONFIG: Final = (
    *(
        Needs(f"features.{key}", "features.particles: true", lambda config: config.features.particles)
        for key in ("max_tracks", "max_photons", "max_neutral_hadrons", "ordering")
    ),
    Needs(
        "features.integrated_luminosity",
        "samples with cross_section_pb",
        lambda config: any(map(_has_cross_section, config.samples)),
    ),
    Needs(
        "features.btag_mask",
        "the bit 1, the only one that ingest.min_btag gives",
        lambda config: config.ingest.min_btag is None or config.features.btag_mask & 1,
    ),
    Needs("ingest.max_bad_files", "ingest.on_bad_file: skip", lambda config: config.ingest.on_bad_file == "skip"),
    Needs(
        "evaluate.luminosity",
        "cross_section_pb of all samples",
        lambda config: all(map(_has_cross_section, config.samples)),
    ),
    Needs("simulate", "simulate.processes", lambda config: config.simulate.processes),
    *(
        Needs(
            f"evaluate.systematics.{key}",
            "a model of high-level features alone: hlf among model.names, or evaluate.reference: true",
            lambda config: config.evaluate.reference or "hlf" in config.model.names,
        )
        for key in ("jet_scale", "met_scale")
    ),
    Needs("export.hls4ml", "hlf among model.names", lambda config: "hlf" in config.model.names),
    Needs("export.hls4ml_bits", "export.hls4ml: true", lambda config: config.export.hls4ml),
    *(
        Needs(f"simulate.pile_up.{key}", "simulate.pile_up.mean above 0", lambda config: config.simulate.pile_up.mean)
        for key in ("pool", "beam_spot_mm")
    ),
    *(
        Needs(
            f"simulate.lepton_filter.{key}",
            "simulate.lepton_filter.min_pt above 0",
            lambda config: config.simulate.lepton_filter.min_pt,
        )
        for key in ("max_eta", "max_isolation", "thinning")
    ),
)
#: Of each sample.
OF_SAMPLE: Final = (Needs("cross_section_error_pb", "cross_section_pb", _has_cross_section),)
