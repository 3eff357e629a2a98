"""Events to model inputs: features, particle lists, splits, mixing into equal row groups."""

#: What notebooks and plugins may import; all else is private and may change.
__all__ = ["columns", "dataset", "functions", "high_level", "kernels", "matrices", "settings"]
