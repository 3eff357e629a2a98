"""How commands speak and end: exit codes, interrupts, progress."""
