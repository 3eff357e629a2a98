"""The shell of the project: command line, config, transactions, manifests, progress, doctor and report."""
