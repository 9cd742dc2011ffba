#!/bin/sh
# Writes the start files into the current folder: the same OPENFORGE_SEED gives the same bytes.
exec python3 -I - "${OPENFORGE_SEED:-0}" <<'PYTHON'
import random
import sys
from pathlib import Path

pick = random.Random("count-lines " + sys.argv[1])
words = "amber birch cedar delta ember fjord grove heron iris kelp larch maple nova otter pine reed sage".split()
lines = [" ".join(pick.choices(words, k=pick.randint(2, 6))) for _ in range(pick.randint(5, 40))]
Path("notes.txt").write_text("\n".join(lines) + "\n")
PYTHON
