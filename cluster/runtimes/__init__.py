"""Sandboxes for rollouts, one file a kind."""
