"""Makes events: Pythia 8, pile-up, a fast detector and fastjet to ROOT files as of Delphes."""
