"""One versioned config file for every target, with where each value came from."""
