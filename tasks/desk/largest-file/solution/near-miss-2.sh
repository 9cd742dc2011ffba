#!/bin/bash
# Scores 0: the smallest.
wc -c data/*
ls -S data | tail -n 1 > largest.txt
