"""Writes the synthetic NanoAOD files of this example, always the same bytes.

Top quark pairs and W bosons with jets that decay to a lepton, as smooth distributions in the range
of a collider's; no detector, no correlations beyond those that separate the two. `data.root` is a
mixture of both in the proportion of their cross-sections, without weights of a generator.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import awkward as ak
import numpy as np
import uproot

#: [pb], and events: those of a luminosity of 1.2 /pb in the data.
CROSS_SECTIONS: Final = {"wjets": 600.0, "ttbar": 366.0}
NUM_SIMULATED: Final = 1200
LUMINOSITY: Final = 1.2
#: Share of events with negative weights, as in generators at next-to-leading order.
NEGATIVE: Final = 0.03


def rounded(values: np.ndarray, bits: int = 7) -> np.ndarray:
    """Numbers with a short mantissa, as NanoAOD stores them."""
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.round(mantissa * 2**bits) / 2**bits, exponent), dtype=np.float32)


def collection(
    rng: np.random.Generator, counts: np.ndarray, pt: np.ndarray, **more: np.ndarray
) -> ak.Array:
    """Candidates of events, highest pT first within each."""
    fields = {
        "pt": rounded(pt),
        "eta": rounded(np.clip(rng.normal(0, 1.2, len(pt)), -2.5, 2.5)),
        "phi": rounded(rng.uniform(-np.pi, np.pi, len(pt)) * 0.999),
        **more,
    }
    found = ak.zip({name: ak.unflatten(values, counts) for name, values in fields.items()})
    return found[ak.argsort(found.pt, ascending=False)]


def events(rng: np.random.Generator, process: str, num: int) -> dict[str, ak.Array]:
    """Branches of some events of a process."""
    is_top = process == "ttbar"
    num_b = np.full(num, 2) if is_top else (rng.random(num) < 0.06).astype(np.int64)
    num_jets = num_b + rng.poisson(1.7 if is_top else 1.6, num)
    is_b = np.concatenate([np.arange(each) < bs for each, bs in zip(num_jets, num_b, strict=True)])
    jet_pt = 20 + rng.exponential(np.where(is_b, 55.0, 45.0 if is_top else 30.0))
    btag = np.where(is_b, rng.beta(4, 1.2, len(is_b)), rng.beta(1.1, 5, len(is_b)))
    lepton_pt = 15 + rng.gamma(2.0, 19.0 if is_top else 13.0, num)
    is_electron = rng.random(num) < 0.45
    charge = rng.choice(np.array([-1, 1], np.int32), num)
    leptons = {
        name: collection(rng, chosen.astype(np.int64), lepton_pt[chosen], charge=charge[chosen])
        for name, chosen in (("Electron", is_electron), ("Muon", ~is_electron))
    }
    return {
        **leptons,
        "Jet": collection(rng, num_jets, jet_pt, btagDeepFlavB=rounded(btag)),
        "MET_pt": rounded(rng.gamma(2.2, 26.0 if is_top else 17.0, num)),
        "MET_phi": rounded(rng.uniform(-np.pi, np.pi, num) * 0.999),
    }


def write(path: Path, branches: dict[str, ak.Array], *, is_simulated: bool) -> None:
    """A file with the trees `Events` and, of simulated events, `Runs`."""
    num = len(branches["MET_pt"])
    numbers = {"event": np.arange(1, num + 1, dtype=np.uint64)}
    if is_simulated:
        signs = np.where(np.random.default_rng(num).random(num) < NEGATIVE, -1.0, 1.0)
        numbers["genWeight"] = signs.astype(np.float32)
    with uproot.recreate(path, compression=uproot.LZMA(9)) as file:
        put(file, "Events", {**branches, **numbers})
        if is_simulated:
            put(
                file,
                "Runs",
                {"genEventSumw": np.array([signs.sum()]), "genEventCount": np.array([num])},
            )


def put(
    file: uproot.WritableDirectory, name: str, branches: dict[str, ak.Array | np.ndarray]
) -> None:
    """Write a TTree; collections get a counter, `nJet`."""
    types = {
        key: each.dtype if isinstance(each, np.ndarray) else each.type
        for key, each in branches.items()
    }
    file.mktree(name, types).extend(branches)


def main(here: Path) -> None:
    """Write all files to a folder."""
    rng = np.random.default_rng(13)
    for process in CROSS_SECTIONS:
        write(here / f"{process}.root", events(rng, process, NUM_SIMULATED), is_simulated=True)
    found = [
        events(rng, name, rng.poisson(size * LUMINOSITY)) for name, size in CROSS_SECTIONS.items()
    ]
    order = rng.permutation(sum(len(each["MET_pt"]) for each in found))
    mixed = {name: ak.concatenate([each[name] for each in found])[order] for name in found[0]}
    write(here / "data.root", mixed, is_simulated=False)


if __name__ == "__main__":
    main(Path(__file__).parent)
