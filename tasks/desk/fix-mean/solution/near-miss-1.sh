#!/bin/bash
# Scores 0: one too many instead of one too few.
cat mean.py
sed -i 's/len(xs) - 1/len(xs) + 1/' mean.py
python3 mean.py
