"""Starts a training in this process, under mpirun or under srun."""
