"""Distributed training: readers, flat model, transports, algorithms, trainer and MPI launcher."""

#: What notebooks and plugins may import; all else is private and may change.
__all__ = ["algorithms", "topology", "transports", "workloads"]
