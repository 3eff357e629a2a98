"""How physicists write the features, on axes of figures."""

from __future__ import annotations

from typing import Final

from features.columns import Feature

_SYMBOLS: Final = {
    "ht": "$H_T$",
    "met": r"$E_T^{miss}$",
    "met_phi": r"$\phi(E_T^{miss})$",
    "mt": "$m_T$",
    "num_jets": "Number of jets",
    "num_bjets": "Number of b-jets",
    "lepton_pt": r"Lepton $p_T$",
    "lepton_eta": r"Lepton $\eta$",
    "lepton_phi": r"Lepton $\phi$",
    "lepton_iso_charged": "Lepton isolation, charged",
    "lepton_iso_photon": "Lepton isolation, photons",
    "lepton_iso_neutral": "Lepton isolation, neutrals",
    "num_particles": "Number of particles",
    "lepton_is_electron": "Lepton is an electron",
    "pt": "$p_T$",
    "eta": r"$\eta$",
    "phi": r"$\phi$",
    "iso_charged": "Isolation, charged",
    "iso_photon": "Isolation, photons",
    "iso_neutral": "Isolation, neutrals",
}


def symbol_of(name: str) -> str:
    """How physicists write a feature.

    Examples:
        >>> symbol_of("ht"), symbol_of("lepton_charge")
        ('$H_T$', 'Lepton charge')
    """
    return _SYMBOLS.get(name, name[:1].upper() + name[1:].replace("_", " "))


def axis_label(feature: Feature) -> str:
    """Symbol and unit of a feature."""
    return symbol_of(feature.name) if feature.unit == "1" else f"{symbol_of(feature.name)} [{feature.unit}]"
