"""The terminal: exit codes, interrupts, progress, tables."""
