"""Batches of events for one rank, from the features Parquet, by petastorm or by pyarrow."""
