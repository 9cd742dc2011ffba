"""`untrusted CMD…` inside a grader: runs CMD in another sandbox that has the agent's work and nothing else.

Hands its three standard streams to the host, waits, and ends with the command's exit code (124 = over its time limit).
Standard library only; runs where OpenForge is not.
"""

import json
import os
import socket
import sys


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit("usage: untrusted COMMAND [ARGUMENT…]")
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.connect("/opt/openforge/untrusted.sock")
    request = json.dumps({"argv": sys.argv[1:], "cwd": os.getcwd()}).encode()
    socket.send_fds(link, [request], [0, 1, 2])
    answer = link.recv(64)
    sys.exit(int(answer) if answer else 125)


if __name__ == "__main__":
    main()
