"""Errors of the features stage; each message says what is wrong, where, and what to do."""

from __future__ import annotations


class FeatureError(Exception):
    """An error of the events or the feature settings that the user can fix."""


class EmptySelectionError(FeatureError):
    """No event of a class is left after the selection; the message holds the cutflow."""


class EmptySplitError(FeatureError):
    """A split has no events, or lacks a class."""


class TooFewEventsError(FeatureError):
    """A split has fewer events than the required number of row groups."""


class WeightSumError(FeatureError):
    """The event weights of a class add up to 0 or less, so that the classes cannot be balanced."""


class DatasetError(FeatureError):
    """A features dataset is incomplete or has another version."""
