#!/bin/bash
# The oracle: one command a line.
find cache -name '*.tmp'
find cache -name '*.tmp' -delete
