"""The shell around the stages: command line, config, transactions, manifests, progress, doctor and report."""
