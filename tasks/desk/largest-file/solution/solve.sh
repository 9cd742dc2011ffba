#!/bin/bash
# The oracle: one command a line.
wc -c data/*
ls -S data | head -n 1 > largest.txt
