#!/bin/sh
# Writes the start files into the current folder: the same OPENFORGE_SEED gives the same bytes.
exec python3 -I - "${OPENFORGE_SEED:-0}" <<'PYTHON'
import random
import sys
from pathlib import Path

pick = random.Random("sort-names " + sys.argv[1])
words = "amber birch cedar delta ember fjord grove heron iris kelp larch maple nova otter pine reed sage".split()
names = pick.choices(words, k=pick.randint(12, 24))
Path("names.txt").write_text("\n".join(["sage", "amber", *names, "sage"]) + "\n")
PYTHON
