"""Networks with built-in feature scaling, prediction, metrics, and the figures of an evaluation."""
