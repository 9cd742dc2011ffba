#!/bin/sh
# Writes the start files into the current folder: the same OPENFORGE_SEED gives the same bytes.
exec python3 -I - "${OPENFORGE_SEED:-0}" <<'PYTHON'
import random
import sys
from pathlib import Path

pick = random.Random("pack-project " + sys.argv[1])
words = "amber birch cedar delta ember fjord grove heron iris kelp larch maple nova otter pine reed sage".split()
Path("project").mkdir()
for name in pick.sample(words, 3):
    Path(f"project/{name}.txt").write_text(" ".join(pick.choices(words, k=5)) + "\n")
PYTHON
