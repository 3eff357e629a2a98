"""How a training starts: in this process, under mpirun or under srun."""
