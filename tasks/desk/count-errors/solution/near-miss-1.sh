#!/bin/bash
# Scores 0: lower-case mentions of an error are counted too.
head -n 3 server.log
grep -ci error server.log > answer.txt
