"""The shared core: what every part of OpenForge agrees on. Pure data, files and SQL; no network, no processes."""

__version__ = "0.1.0"
