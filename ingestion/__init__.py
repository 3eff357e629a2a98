"""ROOT files to events Parquet: finds and checks files, reads them with uproot in Spark tasks, applies thresholds."""
