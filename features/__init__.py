"""Events to model inputs: high-level features, particle lists, train/val/test split, mixing into equal row groups."""

#: What notebooks and plugins may import; all else is private and may change.
__all__ = ["columns", "dataset", "functions", "high_level", "kernels", "matrices", "settings"]
