#!/bin/bash
# Scores 0: it counts words.
wc -w < notes.txt > answer.txt
cat answer.txt
