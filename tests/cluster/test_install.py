"""Installing a harness, with a stand-in for npm that makes the folders npm would make."""

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cluster import install as installer
from openforge.errors import InfraError
from openforge.harness import HarnessManifest, load_harness

NPM = """#!/bin/sh
echo "$@" >> {log}
while [ $# -gt 0 ]; do [ "$1" = --prefix ] && prefix=$2; last=$1; shift; done
sleep 0.2
name=${{last%%@*}}
case $name in
  node-*) bin=$prefix/node_modules/$name/bin; program=node; says=v24.1.0;;
  *) bin=$prefix/node_modules/.bin; program=toy; says='toy {version}';;
esac
mkdir -p $bin; printf '#!/bin/sh\\necho %s\\n' "$says" > $bin/$program; chmod +x $bin/$program
"""


@pytest.fixture
def manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HarnessManifest:
    folder = tmp_path / "harnesses" / "toy"
    folder.mkdir(parents=True)
    (folder / "harness.toml").write_text(
        'name = "toy"\nversion = "1.2.3"\ndialects = ["chat"]\n[run]\nargv = ["{bin}"]\n'
        '[install]\nkind = "npm"\npackages = ["toy@1.2.3"]\nnode = "24"\nbin = "toy"\n'
    )
    monkeypatch.setenv("OPENFORGE_CACHE", str(tmp_path / "cache"))
    return load_harness("toy", [folder.parent])


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_npm(tmp_path, monkeypatch, "1.2.3")


def make_npm(root: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> Path:
    program, log = root / "bin" / "npm", root / "npm.log"
    program.parent.mkdir(exist_ok=True)
    program.write_text(NPM.format(log=log, version=version))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return log


def test_it_installs_once_and_node_comes_first(manifest: HarnessManifest, npm: Path) -> None:
    said: list[str] = []
    first = installer.install(manifest, said.append)
    assert installer.install(manifest, said.append) == first
    assert (first.root / first.bin).is_file()
    assert first.node is not None
    calls = npm.read_text().splitlines()
    assert [line.split()[-1].partition("@")[0].startswith("node-") for line in calls] == [True, False]
    assert "--ignore-scripts" in calls[0]
    assert calls[1].endswith("toy@1.2.3")
    assert len([text for text in said if "ready" in text]) == 1


def test_two_installers_at_once_do_the_work_once(manifest: HarnessManifest, npm: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: installer.install(manifest), range(4)))
    assert len(set(results)) == 1
    assert len(npm.read_text().splitlines()) == 2


def test_another_version_than_the_pinned_one_is_refused_and_not_kept(
    manifest: HarnessManifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_npm(tmp_path, monkeypatch, "0.0.1 placeholder")
    with pytest.raises(InfraError, match=r"asked for 1\.2\.3, but toy says 'toy 0\.0\.1"):
        installer.install(manifest)
    assert not installer.is_installed(manifest)
    assert not list((tmp_path / "cache" / "harness").glob("*partial*"))


def test_a_machine_without_npm_is_told_what_to_type(manifest: HarnessManifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InfraError, match="npm is not on PATH") as caught:
        installer.install(manifest)
    assert "apt-get install npm" in caught.value.hint


def test_npm_that_fails_shows_what_it_said(
    manifest: HarnessManifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_npm(tmp_path, monkeypatch, "1.2.3")
    (tmp_path / "bin" / "npm").write_text("#!/bin/sh\necho E404 no such package; exit 1\n")
    with pytest.raises(InfraError, match="E404 no such package"):
        installer.install(manifest)


def test_what_a_killed_installer_left_is_not_taken_for_an_install(manifest: HarnessManifest, npm: Path) -> None:
    partial = installer.cache_dir() / "harness" / ".toy-1.2.3.partial"
    partial.mkdir(parents=True)
    (partial / "half").write_text("")
    assert not installer.is_installed(manifest)
    root = installer.install(manifest).root
    assert not (root / "half").exists()


@pytest.mark.contract
@pytest.mark.parametrize("name", ["pi", "codex"])
def test_real_harnesses_in_the_cache_print_their_pinned_version(name: str, cache_dir: Path) -> None:
    manifest = load_harness(name)
    if not installer.is_installed(manifest):
        pytest.skip(f"{name} is not installed: openforge harness install {name}")
    installed = installer.install(manifest)
    assert installed.node is not None
    path = f"{installed.node / 'bin'}:/usr/bin:/bin"
    argv = [str(installed.root / installed.bin), "--version"]
    done = subprocess.run(argv, env={"PATH": path, "HOME": "/nonexistent"}, capture_output=True, text=True, timeout=60)
    assert manifest.version in done.stdout + done.stderr, sys.stderr
