"""One versioned config file for every target, with where each value came from."""

from openforge.config.load import Loaded, load, overridden
from openforge.config.models import Config

__all__ = ["Config", "Loaded", "load", "overridden"]
