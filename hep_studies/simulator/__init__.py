"""Simulates thousands of workers in one process: the same algorithms on a virtual clock."""
