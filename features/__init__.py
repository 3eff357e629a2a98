"""Events to model inputs: high-level features, particle lists, train/val/test split, mixing into equal row groups."""
