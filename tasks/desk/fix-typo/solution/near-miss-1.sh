#!/bin/bash
# Scores 0: only the first one of each line.
grep -c teh story.txt
sed -i 's/teh/the/' story.txt
