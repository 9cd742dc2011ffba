#!/bin/sh
# Writes the start files into the current folder: the same OPENFORGE_SEED gives the same bytes.
exec python3 -I - "${OPENFORGE_SEED:-0}" <<'PYTHON'
import random
import sys
from pathlib import Path

pick = random.Random("rename-md " + sys.argv[1])
words = "amber birch cedar delta ember fjord grove heron iris kelp larch maple nova otter pine reed sage".split()
Path("docs").mkdir()
for name in pick.sample(words, pick.randint(2, 5)):
    Path(f"docs/{name}.txt").write_text(" ".join(pick.choices(words, k=4)) + "\n")
Path("docs/table.csv").write_text("a,b\n")
PYTHON
