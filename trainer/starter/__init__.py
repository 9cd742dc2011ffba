"""The starter policy: a tiny Qwen3-shaped model taught on this machine from the demonstrations of real harnesses."""
