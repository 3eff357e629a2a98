"""What is trained: batches, gradients, losses, validation."""
