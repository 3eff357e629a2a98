"""Compares optimisers on the same data: studies, runs, simulator, verdicts, figures and pages."""
