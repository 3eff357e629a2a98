"""Makes events: Pythia 8, pile-up, a fast detector and fastjet to ROOT files like those of Delphes."""
