"""Distributed training: readers, flat model, transports, algorithms, trainer and the MPI launcher."""
