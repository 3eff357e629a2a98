"""The computation of a worker: batches, gradients, losses and validation."""
