#!/bin/bash
# The oracle: one command a line.
wc -l < notes.txt > answer.txt
cat answer.txt
