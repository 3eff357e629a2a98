"""Networks with their feature scaling inside, prediction, metrics and the figures of an evaluation."""
