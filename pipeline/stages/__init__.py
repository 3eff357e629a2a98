"""The stages: what each one reads, what its result depends on, and the call into the package that does the work."""
