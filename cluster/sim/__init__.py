"""A simulated cluster: a real control plane, nodes and pods that only say that they run."""
