"""Training on Spark alone, with the method and the system of Langer et al. 2018."""
