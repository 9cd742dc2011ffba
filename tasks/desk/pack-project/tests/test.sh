#!/bin/bash
# Reward 1 when backup.tar.gz is a gzip archive that holds exactly the files of project, else 0.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
orig="${TASK_ORIG:-/orig}"

check() {
  [ -f backup.tar.gz ] && [ ! -L backup.tar.gz ] || return 1
  # Read in place, never unpacked: an archive may hold links and paths that lead elsewhere.
  python3 -I - "$orig" <<'PYTHON'
import pathlib, sys, tarfile
orig = pathlib.Path(sys.argv[1])
wanted = {path.relative_to(orig).as_posix(): path.read_bytes() for path in orig.glob("project/*")}
with tarfile.open("backup.tar.gz", "r:gz") as archive:
    members = [member for member in archive.getmembers() if not member.isdir()]
    found = {m.name.removeprefix("./"): archive.extractfile(m).read(10_000) for m in members if m.isreg()}
sys.exit(found != wanted or len(members) != len(wanted))
PYTHON
}

if check >/dev/null 2>&1; then reward=1; else reward=0; fi
echo "$reward" > "${REWARD_FILE:-/logs/verifier/reward.txt}"
