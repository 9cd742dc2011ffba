#!/bin/sh
# Writes the start files into the current folder: the same OPENFORGE_SEED gives the same bytes.
exec python3 -I - "${OPENFORGE_SEED:-0}" <<'PYTHON'
import random
import sys
from pathlib import Path

pick = random.Random("fix-typo " + sys.argv[1])
words = "amber birch cedar delta ember fjord grove heron iris kelp larch maple nova otter pine reed sage".split()
lines = [" teh ".join(pick.choices(words, k=3)) for _ in range(pick.randint(2, 5))]
Path("story.txt").write_text("\n".join(lines) + "\n")
PYTHON
