"""The run folder: versions, fingerprints, lock, log, provenance, model registry."""
