#!/bin/bash
# The oracle: one command a line.
cat mean.py
sed -i 's/(len(xs) - 1)/len(xs)/' mean.py
python3 mean.py
