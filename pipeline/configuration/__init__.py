"""The parts of the config: YAML, overrides, relative paths, credentials, and messages about mistakes."""
