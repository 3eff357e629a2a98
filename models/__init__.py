"""Networks with built-in feature scaling, prediction, metrics, and the figures of an evaluation."""

#: What notebooks and plugins may import; all else is private and may change.
__all__ = ["evaluation", "networks", "prediction"]
