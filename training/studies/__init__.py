"""Comparison of optimisers on the same data: which runs, running them, their numbers, tables, figures and page."""
