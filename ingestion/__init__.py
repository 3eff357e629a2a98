"""Makes events Parquet of ROOT files: checks files, reads them with uproot in Spark tasks."""

#: The modules that notebooks and plugins may import; all else is private and may change.
__all__ = ["reader", "schema", "selection", "settings"]
