"""The transports, which carry vectors between workers."""
