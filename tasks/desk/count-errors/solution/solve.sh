#!/bin/bash
# The oracle: one command a line.
head -n 3 server.log
grep -c ERROR server.log > answer.txt
