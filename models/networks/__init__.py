"""The networks, one file each, with their settings."""
