"""What a command made or used: the numbers of its last line, and of the JSON that `notify` gets."""

from __future__ import annotations

from typing import Any, Final

from pipeline.runs.counters import EvaluateCounters, IngestCounters, TrainCounters
from pipeline.runs.version import Version

#: Skipped files that a line names.
_MAX_NAMED_FILES: Final = 3


class CommandResults:
    """Collects the results of one command: of each version that it made or used."""

    def __init__(self) -> None:
        self.phrases: list[str] = []
        """Phrases for the last line in the terminal."""
        self.values: dict[str, Any] = {}
        """The same results, and more, for the JSON that the command of `notify` gets."""
        self._phrases_of_stage: dict[str, list[str]] = {}
        """The phrases that each stage added, so that they can be replaced."""

    def add(self, phrase: str, **values: Any) -> None:
        """Add a result: a phrase for the last line, and values for JSON by key.

        A value that is a mapping is joined with an earlier mapping of the same key; any other
        value replaces an earlier one.
        """
        self.phrases.append(phrase)
        for key, value in values.items():
            if isinstance(value, dict):
                self.values.setdefault(key, {}).update(value)
            else:
                self.values[key] = value

    def add_stage(self, version: Version, *, is_new: bool) -> None:
        """Add the results of a version; those that the same stage added before are replaced.

        Args:
            version: The version in use after the stage.
            is_new: Whether this command made it; otherwise it was up to date.
        """
        stage = version.manifest.stage
        # A stage that repairs its output was added before.
        for phrase in self._phrases_of_stage.pop(stage, []):
            self.phrases.remove(phrase)
        num_earlier = len(self.phrases)
        if is_new:
            creation_times = self.values.setdefault("made", {})
            creation_times[stage] = version.manifest.created.isoformat()
        if stage == "ingest":
            self._add_files(version)
        elif stage == "train":
            networks = version.counters(TrainCounters).networks
            accuracies = {name: summary.best_val_accuracy for name, summary in networks.items()}
            self._add_accuracies("validation", accuracies, key="validation_accuracy")
        elif stage == "evaluate":
            models = version.counters(EvaluateCounters).runs
            accuracies = {name: metrics.accuracy.value for name, metrics in models.items()}
            self._add_accuracies("test", accuracies, key="accuracy")
        self._phrases_of_stage[stage] = self.phrases[num_earlier:]

    def _add_files(self, version: Version) -> None:
        """Add the results of a version of `ingest`: its files, its events, and files left out.

        Skipped files are damaged; waiting ones are left for a later run.
        """
        counters = version.counters(IngestCounters)
        skipped = [file["path"] for file in counters.bad_files]
        waiting = [file["path"] for file in counters.waiting_files]
        num_read = len(version.manifest.inputs)
        num_files = {"read": num_read, "skipped": len(skipped), "waiting": len(waiting)}
        num_events = {sample: steps["events"] for sample, steps in counters.samples.items()}
        self.add(f"{num_read:,} files in use", files=num_files, events=num_events)
        if skipped:
            phrase = f"{len(skipped):,} files skipped ({_first_names(skipped)})"
            self.add(phrase, skipped_files=skipped)
        if waiting:
            phrase = f"{len(waiting):,} files waiting ({_first_names(waiting)})"
            self.add(phrase, waiting_files=waiting)

    def _add_accuracies(self, split: str, accuracies: dict[str, float], *, key: str) -> None:
        """Add the accuracy of each network on a split (validation or test) of the events."""
        self.values[key] = accuracies
        for network, accuracy in accuracies.items():
            self.phrases.append(f"{split} accuracy of {network} {accuracy:.3f}")


def _first_names(names: list[str]) -> str:
    """Return the first names, and how many more there are, as a phrase.

    Examples:
        >>> _first_names(["a", "b", "c", "d", "e"])
        'a, b, c and 2 more'
    """
    first_names = ", ".join(names[:_MAX_NAMED_FILES])
    num_more = len(names) - _MAX_NAMED_FILES
    return f"{first_names} and {num_more:,} more" if num_more > 0 else first_names
