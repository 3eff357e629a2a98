"""Distributed training: readers, flat model, transports, algorithms, trainer and MPI launcher."""
