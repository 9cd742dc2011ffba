#!/bin/bash
# Scores 0: uniq alone does not sort.
uniq names.txt > sorted.txt
head -n 3 sorted.txt
