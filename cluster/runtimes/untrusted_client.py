"""`untrusted CMD…` inside a grader: runs CMD in another sandbox that has the agent's work and nothing else.

Hands its three standard streams to the host, waits, and ends with the command's exit code (124 = over its time limit).
Standard library only; runs where OpenForge is not.
"""

import json
import os
import socket
import sys


def ask(place: str, argv: list[str]) -> int:
    """Have `argv` run by who listens at `place`; its exit code."""
    if not argv:
        sys.exit("usage: untrusted COMMAND [ARGUMENT…]")
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.connect(place)
    request = json.dumps({"argv": argv, "cwd": os.getcwd()}).encode()
    socket.send_fds(link, [request], [0, 1, 2])
    answer = link.recv(64)
    return int(answer) if answer else 125


if __name__ == "__main__":
    sys.exit(ask("/opt/openforge/untrusted.sock", sys.argv[1:]))
