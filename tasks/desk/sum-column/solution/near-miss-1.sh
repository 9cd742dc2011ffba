#!/bin/bash
# Scores 0: it adds up the prices.
head -n 2 sales.csv
awk -F, 'NR>1{s+=$3} END{print s}' sales.csv > total.txt
cat total.txt
