"""The report: one self-contained HTML page about the run and its results."""
