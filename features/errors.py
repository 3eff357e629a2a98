"""Errors of the features stage; each message says what is wrong, where, and what to do."""

from __future__ import annotations


class FeatureError(Exception):
    """An error of the events or the feature settings that the user can fix."""


class DatasetError(FeatureError):
    """A features dataset is incomplete or has another version."""
