"""The commands other than stages; each file has the name that the user types."""
