"""How two configurations differ, such as those of two targets: each key, both values, and who set them. Pure."""

from typing import Any, NamedTuple

from openforge.config.load import Loaded
from openforge.config.render import rows

_MEANT = "target.name"  # the two were chosen by it


class Change(NamedTuple):
    """One key. `here` and `there` are values as `config show` prints them; secrets are hidden."""

    key: str
    here: Any
    there: Any
    set_here: str
    set_there: str


def diff(here: Loaded, there: Loaded) -> list[Change]:
    """What differs, in the order of the models. A key that one of them has not is None there."""
    left, right = ({row.key: row for row in rows(loaded)} for loaded in (here, there))
    changes = []
    for key in dict.fromkeys([*left, *right]):
        one, other = left.get(key), right.get(key)
        if (one and one.value) != (other and other.value) and key != _MEANT:
            changes.append(
                Change(
                    key,
                    one.value if one else None,
                    other.value if other else None,
                    one.source if one else "",
                    other.source if other else "",
                )
            )
    return changes
