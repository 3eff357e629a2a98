"""The transports: what carries vectors between workers."""
