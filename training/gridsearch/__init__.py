"""Grid search over architectures of the classifier on high-level features."""
