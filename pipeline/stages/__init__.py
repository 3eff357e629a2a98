"""The stages: their inputs, what their results depend on, and the call that does the work."""
