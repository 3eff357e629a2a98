"""Batches of events for one rank, from the features Parquet: through petastorm, through pyarrow, or from memory."""
