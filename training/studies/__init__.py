"""Comparison of optimisers on the same data: plan, runs, numbers, tables, figures and page."""
