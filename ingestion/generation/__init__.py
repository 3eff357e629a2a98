"""From the generator to Delphes-like ROOT files: Pythia 8, pile-up, a fast detector, fastjet, uproot."""
