"""Batches of events for one rank, from the features Parquet: by petastorm, by pyarrow, or from memory."""
