#!/bin/sh
# Writes the start files into the current folder: the same OPENFORGE_SEED gives the same bytes.
exec python3 -I - "${OPENFORGE_SEED:-0}" <<'PYTHON'
import random
import sys
from pathlib import Path

pick = random.Random("clean-tmp " + sys.argv[1])
words = "amber birch cedar delta ember fjord grove heron iris kelp larch maple nova otter pine reed sage".split()
Path("cache/deep").mkdir(parents=True)
for name in pick.sample(words, 3):
    Path(f"cache/{name}.tmp").write_text("t")
    Path(f"cache/deep/{name}.tmp").write_text("t")
Path("cache/keep.dat").write_text("k")
Path("cache/deep/keep.dat").write_text("k")
PYTHON
