#!/bin/sh
# Writes the start files into the current folder: the same OPENFORGE_SEED gives the same bytes.
exec python3 -I - "${OPENFORGE_SEED:-0}" <<'PYTHON'
import random
import sys
from pathlib import Path

pick = random.Random("fix-mean " + sys.argv[1])
numbers = [pick.randint(1, 9) for _ in range(3)]
Path("mean.py").write_text(
    "def mean(xs):\n    return sum(xs) / (len(xs) - 1)\n\n"
    f"if __name__ == '__main__':\n    print(mean({numbers}))\n"
)
PYTHON
