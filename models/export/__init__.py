"""Networks as files that a trigger runs, with their parity and latency."""
