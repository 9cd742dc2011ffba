#!/bin/bash
# The oracle: one command a line.
ls project
tar czf backup.tar.gz project
