"""The desk tasks in other words: the same start files, the same tests, another instruction.

The starter's lessons had the desk's own wordings and none of these. Copies tasks; runs nothing.
"""

import shutil
from pathlib import Path

from openforge.task import Task

SET = "reworded"
WORDINGS = {
    "clean-tmp": "Every .tmp file anywhere under cache has to go; leave all the others alone.",
    "count-errors": "Put into answer.txt, as a bare number, how many lines server.log has at level ERROR.",
    "count-lines": "How long is notes.txt? Save its number of lines, and no other text, as answer.txt.",
    "fix-mean": "The mean that mean.py computes is not right. Correct the mistake in that file.",
    "fix-typo": "In story.txt the word the was mistyped as teh; correct all of them.",
    "largest-file": "Which of the files in data takes the most bytes? Name it in largest.txt.",
    "pack-project": "Archive the folder project as a gzipped tar file called backup.tar.gz.",
    "rename-md": "All .txt files in docs should be called .md instead: give them that ending.",
    "set-port": "Let config.json say port 8080; nothing else in it may change.",
    "sort-names": "Make sorted.txt: every name that occurs in names.txt, one time, in alphabetical order.",
    "stock-tool": "We need 5 bolts: have them reserved by means of the stock skill.",
    "sum-column": "What do the values of amount in sales.csv come to? Save their sum as total.txt.",
}


def copy_reworded(tasks: list[Task], folder: Path) -> Path:
    """Copies of `tasks` with their instruction replaced, as a task set below `folder`; returns the set's folder.

    Tasks of one run have names of their own, so a copy of `set-port` is called `set-port-reworded`.
    """
    place = folder / SET
    for task in tasks:
        copy = place / f"{task.name}-{SET}"
        shutil.copytree(task.root, copy)
        (copy / "instruction.md").write_text(WORDINGS[task.name] + "\n")
    return place
