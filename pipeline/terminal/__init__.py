"""The terminal: exit codes, progress, tables."""
