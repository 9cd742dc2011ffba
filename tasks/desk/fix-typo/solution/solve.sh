#!/bin/bash
# The oracle: one command a line.
grep -c teh story.txt
sed -i 's/teh/the/g' story.txt
