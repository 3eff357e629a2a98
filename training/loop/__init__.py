"""The training loop: trainer, schedule, checkpoints, metering, records."""
