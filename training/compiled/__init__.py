"""Machine code for the CPU: losses and gradients of some networks, and the optimisers."""
