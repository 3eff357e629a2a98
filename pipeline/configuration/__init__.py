"""Parts of the config: YAML, overrides, relative paths, credentials, messages about mistakes."""
