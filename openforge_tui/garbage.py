"""Python's search for garbage, kept away from the keys.

A full search goes through all that was loaded, some 100 ms, and comes when enough was made: amidst what a key waits
for. So what is there once the app has come up is left out, and the rest is searched when nobody types; small searches
go on. Does not know the app.
"""

import gc

_USUAL = gc.get_threshold()
_NEVER = 1_000_000_000


def put_off() -> None:
    """No search, while the app comes up."""
    gc.disable()


def settle() -> None:
    """What is there now stays until the end; from now on full searches are made by `search` alone."""
    gc.freeze()
    gc.set_threshold(*_USUAL[:2], _NEVER)
    gc.enable()


def search() -> None:
    """A full search, when Python would have made one by now."""
    if gc.get_count()[2] > _USUAL[2]:
        gc.collect()


def restore() -> None:
    """As it was."""
    gc.unfreeze()
    gc.set_threshold(*_USUAL)
    gc.enable()
