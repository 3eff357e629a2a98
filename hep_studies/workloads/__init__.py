"""What the studies train besides events: images, and a function of two parameters."""
