#!/bin/bash
# Scores 0: the archive is not compressed.
ls project
tar cf backup.tar.gz project
