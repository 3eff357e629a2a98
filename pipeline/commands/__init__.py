"""Commands that are no stage, each named as the user types it."""
