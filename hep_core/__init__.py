"""The modules that all packages use: storage, paths, secrets, plugins, settings and more."""
