#!/bin/bash
# Scores 0: names stay twice.
sort names.txt > sorted.txt
head -n 3 sorted.txt
