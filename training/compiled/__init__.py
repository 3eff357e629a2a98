"""Machine code for the CPU: loss and gradient of the perceptron and the recurrent networks, and the optimisers."""
