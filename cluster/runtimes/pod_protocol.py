"""What PID 1 of a container and the words that ask it agree on. Each exec imports it, so it imports little."""

from pathlib import Path

HOME = Path("/run/openforge")
SOCKET = HOME / "agent.sock"
WORK = HOME / "work"
"""Says which folder the agent worked in, to what the verifier runs."""
UNTRUSTED = "/run/untrusted/socket"
HEADER = 5
"""Bytes before a frame: its kind, its length."""
OUT, END = b"o", b"e"
