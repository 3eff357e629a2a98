"""The stages: inputs, dependencies of the result, and the call into the package that does the work."""
