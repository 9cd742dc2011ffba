#!/bin/bash
# The oracle: one command a line.
sort -u names.txt > sorted.txt
head -n 3 sorted.txt
