"""Networks as files for a trigger, and checks of their parity and latency."""
