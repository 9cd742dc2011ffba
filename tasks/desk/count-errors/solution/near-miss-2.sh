#!/bin/bash
# Scores 0: it writes the lines, not their number.
head -n 3 server.log
grep ERROR server.log > answer.txt
