"""Many virtual workers in one process, on a virtual clock: the same algorithms, deterministic, to thousands."""
