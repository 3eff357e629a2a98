"""ROOT files to events Parquet: files are found and checked, read by uproot inside Spark tasks, thresholds applied."""
