"""The image of a recorder that runs in a cluster: this machine's own Python and some of its packages."""
