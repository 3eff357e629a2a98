"""Lines of a config that name the branches of a file, for the error about those that it lacks."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Final

from ingestion.branches import config_key, is_variation
from ingestion.expressions import COLUMN_PREFIX, LABEL_PREFIX
from ingestion.known_layouts import LAYOUTS, LayoutNames
from ingestion.schema import COLLECTIONS, PARTICLE_COLLECTIONS, WEIGHT_PREFIX
from ingestion.settings import IngestSettings

#: Usual parts of the names of the branches of a collection, in small letters, best first.
_SIGNS: Final = {
    "tracks": ("track", "trk"),
    "photons": ("photon", "pho", "gam"),
    "neutral_hadrons": ("neutral", "neu", "nh"),
    "electrons": ("electron", "ele", "el"),
    "muons": ("muon", "mu"),
    "jets": ("jet", "ak4"),
}
#: The end of a name from its last separator on (`.PT` of `Jet.PT`); the rest is the stem.
_LAST_PART: Final = re.compile(r"[./_][^./_]+$")
#: Similarity of two names, by difflib, above which they may be the same.
_NEAR_ENOUGH: Final = 0.75


def lines_to_paste(
    missing: Mapping[str, str], names: LayoutNames, available: Collection[str]
) -> str:
    """Write lines of a config that map missing branches to the nearest ones; empty without any.

    If the file has all branches of another layout, the line names that layout. Else they are a
    branch map.

    Args:
        missing: Branches that the file lacks, by field of the events.
        names: The layout of the config.
        available: Branches of the file; it must know a branch by each of its names, as
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
    """Whether a file has all branches of a layout but the weight and those of particles."""
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
    """A branch map for missing fields: of collections where possible, else of single fields.

    For each missing field, a stem for its whole collection is tried first. A field that the file
    lacks even then gets the branch with the nearest name.
    """
    branch_map: dict[str, str] = {}
    layout_branches = names.branches({})
    for field, branch in missing.items():
        if field not in layout_branches:
            continue
        # A stem for the collection may give this field and those that follow.
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
    """The start of the branches of a collection (`Jet` of `Jet.PT`); None if none fits.

    A stem fits if its name is like that of the collection, and the file has all fields of the
    collection under it. The names of b-tags vary, so they do not count.
    """
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
            # A longer stem may be that of counters or of a subset.
            return min(fitting, key=len)
    return None


def _shortest_tag(stem: str, available: Collection[str]) -> str | None:
    """The shortest branch of jets with `btag` in its name; None without one."""
    branches_of_stem = [branch for branch in available if branch.startswith(stem)]
    tags = [branch for branch in branches_of_stem if "btag" in branch.casefold()]
    return min(tags, key=len, default=None)


def _nearest_branch(field: str, branch: str, available: Collection[str]) -> str | None:
    """The branch of a field in any layout, else the one with the nearest name; None without any."""
    for names in LAYOUTS.values():
        usual_name = names.branches({})[field]
        if usual_name in available:
            return usual_name.replace(".", "_")
    # Names are compared without case and kind of separator.
    by_plain_name = {_plain(name): name for name in available}
    plain_name = _plain(branch)
    matches = difflib.get_close_matches(plain_name, by_plain_name, n=1, cutoff=_NEAR_ENOUGH)
    if not matches:
        return None
    (nearest_name,) = matches
    return by_plain_name[nearest_name]


def _plain(name: str) -> str:
    """A name in small letters with dots as separators, for comparisons."""
    return name.casefold().replace("_", ".")


def key_of_field(field: str, settings: IngestSettings) -> str:
    """The key of the config that names the branch of a field, for messages.

    A field of the events (`muons.pt`) is its own key, below `ingest.branch_map`.
    """
    if field in settings.pass_through_columns:
        prefix = WEIGHT_PREFIX if is_variation(field) else COLUMN_PREFIX
        return f"{config_key(field)}: {field.removeprefix(prefix)}"
    if field == "weight" or field.startswith(LABEL_PREFIX):
        return config_key(field)
    return field
