"""The certificate authority that sandboxes trust: made once a folder, with a bundle for harnesses that want one file.

Its key never leaves the folder. The bundle is this machine's own authorities and ours, since most programs that are
told of a bundle forget the system's.
"""

import fcntl
import ssl
from pathlib import Path

import certifi
from mitmproxy.certs import CertStore

_NAME = "mitmproxy"  # what mitmproxy itself looks for in its confdir
_KEY_BITS = 2048


def prepare(folder: Path) -> Path:
    """Make what is missing, safe against other recorders that start now; returns the bundle."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    bundle = folder / "bundle.pem"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / f"{_NAME}-ca.pem").exists() or not bundle.exists():
            CertStore.from_store(folder, _NAME, _KEY_BITS)
            system = Path(ssl.get_default_verify_paths().cafile or certifi.where())
            trusted = system if system.is_file() else Path(certifi.where())
            ours = (folder / f"{_NAME}-ca-cert.pem").read_text()
            scratch = bundle.with_suffix(".tmp")
            scratch.write_text(trusted.read_text() + "\n" + ours)
            scratch.replace(bundle)
    return bundle
