"""Lines of a config that name the branches of a file, for the error about those that it lacks."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Final

from ingestion.branches import config_key
from ingestion.expressions import LABEL_PREFIX
from ingestion.known_layouts import LAYOUTS, LayoutNames
from ingestion.schema import COLLECTIONS, PARTICLE_COLLECTIONS, WEIGHT_PREFIX
from ingestion.settings import IngestSettings

#: Parts of the names of a collection, in small letters.
_SIGNS: Final = {
    "tracks": ("track", "trk"),
    "photons": ("photon", "pho", "gam"),
    "neutral_hadrons": ("neutral", "neu", "nh"),
    "electrons": ("electron", "ele", "el"),
    "muons": ("muon", "mu"),
    "jets": ("jet", "ak4"),
}
_LAST_PART: Final = re.compile(r"[./_][^./_]+$")
#: Similarity of two names, by difflib, above which they may be the same.
_NEAR_ENOUGH: Final = 0.75


def lines_to_paste(
    missing: Mapping[str, str], names: LayoutNames, available: Collection[str]
) -> str:
    """The lines of a config that name the nearest branches to some missing ones; empty without any.

    `missing` has the branches by field. `available` knows a branch by each of its names, as
    `ingestion.layout.BranchNames` does.
    """
    for layout, layout_names in LAYOUTS.items():
        if layout_names != names and _has_all(layout_names, available):
            return f"Line to paste:\n  ingest: {{layout: {layout}}}"
    branch_map = _nearest_map(missing, names, available)
    if not branch_map:
        return ""
    lines = ["Lines to paste, if these are the right branches:", "  ingest:", "    branch_map:"]
    lines += [f"      {field}: {branch}" for field, branch in branch_map.items()]
    return "\n".join(lines)


def _has_all(names: LayoutNames, available: Collection[str]) -> bool:
    needed = names.branches({})
    del needed["weight"]
    return all(
        branch in available
        for field, branch in needed.items()
        if not field.startswith(PARTICLE_COLLECTIONS)
    )


def _nearest_map(
    missing: Mapping[str, str], names: LayoutNames, available: Collection[str]
) -> dict[str, str]:
    """A branch map of collections, and of fields with other names than in their collection."""
    branch_map: dict[str, str] = {}
    layout_branches = names.branches({})
    for field, branch in missing.items():
        if field not in layout_branches:
            continue
        collection = field.partition(".")[0]
        if collection in COLLECTIONS and collection not in branch_map:
            stem = _nearest_stem(collection, names, available)
            if stem is not None:
                branch_map[collection] = stem
        if names.branches(branch_map)[field] in available:
            continue
        if field == "jets.btag":
            nearest = _shortest_tag(branch_map.get("jets", names.stems["jets"]), available)
        else:
            nearest = _nearest_branch(field, branch, available)
        if nearest is not None:
            branch_map[field] = nearest
    return branch_map


def _nearest_stem(collection: str, names: LayoutNames, available: Collection[str]) -> str | None:
    """The start of the branches of a collection, whatever the names of b-tags, which vary."""
    stems = dict.fromkeys(
        _LAST_PART.sub("", branch) for branch in available if _LAST_PART.search(branch)
    )
    fields = [f"{collection}.{field}" for field in COLLECTIONS[collection] if field != "btag"]
    for sign in _SIGNS[collection]:
        fitting = []
        for stem in stems:
            branches = names.branches({collection: stem})
            if sign in stem.casefold() and all(branches[field] in available for field in fields):
                fitting.append(stem)
        if fitting:
            # Longer stems may be those of counters.
            return min(fitting, key=len)
    return None


def _shortest_tag(stem: str, available: Collection[str]) -> str | None:
    tags = [
        branch for branch in available if branch.startswith(stem) and "btag" in branch.casefold()
    ]
    return min(tags, key=len, default=None)


def _nearest_branch(field: str, branch: str, available: Collection[str]) -> str | None:
    """The branch of a field in any layout, else the branch with the nearest name."""
    for names in LAYOUTS.values():
        usual_name = names.branches({})[field]
        if usual_name in available:
            return usual_name.replace(".", "_")
    by_plain_name = {_plain(name): name for name in available}
    nearest = difflib.get_close_matches(_plain(branch), by_plain_name, n=1, cutoff=_NEAR_ENOUGH)
    return by_plain_name[nearest[0]] if nearest else None


def _plain(name: str) -> str:
    return name.casefold().replace("_", ".")


def key_of_field(field: str, settings: IngestSettings) -> str:
    """The name of a field in the config, or the key that names its branch."""
    if field in settings.pass_through_columns:
        key = "pass_through" if field in settings.pass_through else "weights"
        return f"ingest.{key}: {field.removeprefix(WEIGHT_PREFIX)}"
    if field == "weight" or field.startswith(LABEL_PREFIX):
        return config_key(field)
    return field
