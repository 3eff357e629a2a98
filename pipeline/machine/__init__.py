"""This machine: what is wrong with it, the facts, the Spark session."""
