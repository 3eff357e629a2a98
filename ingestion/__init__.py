"""ROOT files to events Parquet: finds and checks files, reads them with uproot in Spark tasks, applies thresholds."""

#: What notebooks and plugins may import; all else is private and may change.
__all__ = ["reader", "schema", "settings"]
