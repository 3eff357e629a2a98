"""What a command made or used: the numbers of its last line, and of the JSON that `notify` gets."""

from __future__ import annotations

from typing import Any, Final

from pipeline.runs.store import Version

#: Skipped files that a line names.
_NAMED_FILES: Final = 3


class CommandResults:
    """The results of one command, stage by stage; what it neither made nor used is not among them."""

    def __init__(self) -> None:
        self.words: list[str] = []
        """For a line of the terminal."""
        self.values: dict[str, Any] = {}
        """For JSON."""
        self._words_of: dict[str, list[str]] = {}

    def add(self, words: str, **values: Any) -> None:
        """Add a result: words for the line, values for JSON; mappings of the same key are joined."""
        self.words.append(words)
        for key, value in values.items():
            if isinstance(value, dict):
                self.values.setdefault(key, {}).update(value)
            else:
                self.values[key] = value

    def add_stage(self, version: Version, *, is_new: bool) -> None:
        """Add a version that a stage made, or that is up to date."""
        stage = version.manifest["stage"]
        # A stage that repairs its output was added before.
        for words in self._words_of.pop(stage, []):
            self.words.remove(words)
        before = len(self.words)
        if is_new:
            made = self.values.setdefault("made", {})
            made[stage] = version.manifest["created"]
        if stage == "ingest":
            self._add_files(version.manifest)
        elif stage == "train":
            networks = version.manifest["counters"]["networks"]
            accuracies = {name: summary["best_val_accuracy"] for name, summary in networks.items()}
            self._add_accuracies("validation", accuracies, key="validation_accuracy")
        elif stage == "evaluate":
            models = version.manifest["counters"]["runs"]
            accuracies = {name: model["accuracy"]["value"] for name, model in models.items()}
            self._add_accuracies("test", accuracies, key="accuracy")
        self._words_of[stage] = self.words[before:]

    def _add_files(self, manifest: dict[str, Any]) -> None:
        """Add the ROOT files of a version of `ingest`, and its events by sample."""
        counters = manifest["counters"]
        skipped = [bad["path"] for bad in counters.get("bad_files", [])]
        waiting = [file["path"] for file in counters.get("waiting_files", [])]
        in_use = len(manifest["inputs"])
        events = {
            sample: counts["events"] for sample, counts in counters.get("samples", {}).items()
        }
        files = {"read": in_use, "skipped": len(skipped), "waiting": len(waiting)}
        self.add(f"{in_use:,} files in use", files=files, events=events)
        if skipped:
            self.add(
                f"{len(skipped):,} files skipped ({_first_names(skipped)})", skipped_files=skipped
            )
        if waiting:
            self.add(
                f"{len(waiting):,} files waiting ({_first_names(waiting)})", waiting_files=waiting
            )

    def _add_accuracies(self, split: str, accuracies: dict[str, float], *, key: str) -> None:
        """Add accuracies on a split by network."""
        self.values[key] = accuracies
        for network, accuracy in accuracies.items():
            self.words.append(f"{split} accuracy of {network} {accuracy:.3f}")


def _first_names(names: list[str]) -> str:
    """The first names, and how many more there are.

    Examples:
        >>> _first_names(["a", "b", "c", "d", "e"])
        'a, b, c and 2 more'
    """
    shown = ", ".join(names[:_NAMED_FILES])
    others = len(names) - _NAMED_FILES
    return f"{shown} and {others:,} more" if others > 0 else shown
