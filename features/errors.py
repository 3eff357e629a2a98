"""What can be wrong with making features; each message says what, where and what to do."""

from __future__ import annotations


class FeatureError(Exception):
    """Something about the events or the feature settings that the user can mend."""


class EmptySelectionError(FeatureError):
    """No event of a class is left after the selection; the message holds the cutflow."""


class EmptySplitError(FeatureError):
    """A split has no events, or lacks a class."""


class TooFewEventsError(FeatureError):
    """Fewer events in a split than row groups asked for."""


class WeightSumError(FeatureError):
    """The event weights of a class add up to nothing or less, so that classes cannot be balanced."""


class DatasetError(FeatureError):
    """A features dataset is incomplete or of another version."""
