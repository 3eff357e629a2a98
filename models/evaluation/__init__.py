"""Metrics, curves and figures of an evaluation."""
