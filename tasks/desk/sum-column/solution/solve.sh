#!/bin/bash
# The oracle: one command a line.
head -n 2 sales.csv
awk -F, 'NR>1{s+=$2} END{print s}' sales.csv > total.txt
cat total.txt
