"""The report: one self-contained HTML page that says what was done and what came out."""
