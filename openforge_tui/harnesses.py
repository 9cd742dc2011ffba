"""The harnesses that have a manifest, and which of them are on this machine; for the command and for the app."""

from pathlib import Path
from typing import NamedTuple

from openforge.errors import ConfigError
from openforge.harness import HarnessManifest, harness_roots, list_harnesses, load_harness


class Known(NamedTuple):
    """One of them. `trouble`: why there is no manifest to be read, in a word."""

    name: str
    manifest: HarnessManifest | None = None
    installed: bool = False
    trouble: str = ""

    @property
    def state(self) -> str:
        if self.manifest is None:
            return self.trouble
        kind = self.manifest.spec.install.kind
        if not self.installed:
            return f"not installed ({kind})"
        return "comes with OpenForge" if kind == "none" else f"installed ({kind})"


def known_harnesses(project: Path) -> list[Known]:
    """Those of the folder `project` and ours, by name; one that cannot be read hides no other."""
    from cluster.install import is_installed

    roots, found = harness_roots(project), []
    for name in list_harnesses(roots):
        try:
            manifest = load_harness(name, roots)
        except ConfigError as error:
            found.append(Known(name, trouble=error.summary))
        else:
            found.append(Known(name, manifest, is_installed(manifest)))
    return found
