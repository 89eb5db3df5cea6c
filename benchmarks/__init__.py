"""One file per claim: each measures it and returns the figures."""
