"""The shell of the project: command line, config, runs, progress, doctor and report."""

#: What notebooks and plugins may import; all else is private and may change.
__all__ = ["api"]
