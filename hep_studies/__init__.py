"""Compares optimisers on the same data: the language of studies, runs, simulator, verdicts, figures and pages."""
