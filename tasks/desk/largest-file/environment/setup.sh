#!/bin/sh
# Writes the start files into the current folder: the same OPENFORGE_SEED gives the same bytes.
exec python3 -I - "${OPENFORGE_SEED:-0}" <<'PYTHON'
import random
import sys
from pathlib import Path

pick = random.Random("largest-file " + sys.argv[1])
words = "amber birch cedar delta ember fjord grove heron iris kelp larch maple nova otter pine reed sage".split()
Path("data").mkdir()
names, sizes = pick.sample(words, 5), pick.sample(range(10, 900), 5)
for name, size in zip(names, sizes, strict=True):
    Path(f"data/{name}.bin").write_text("x" * size)
Path("data/alpha.bin").write_text("x")
Path("data/zulu.bin").write_text("x")
PYTHON
