"""Append-only records of everything that happened in a run."""
