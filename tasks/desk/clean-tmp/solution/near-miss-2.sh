#!/bin/bash
# Scores 0: other files go as well.
find cache -name '*.tmp'
rm -rf cache
