"""The stages: what each one reads, what its result hangs on, and the call into the package that does the work."""
