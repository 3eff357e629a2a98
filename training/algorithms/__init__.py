"""One file per algorithm; each cites the equation of the thesis that it implements."""
