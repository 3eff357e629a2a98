"""What all parts use: storage, paths, secrets, environment, plugins, settings, checked files, compiled helpers."""
