import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests import patience
from trainyard.core.exits import UserError
from trainyard.prepare import sample
from trainyard.shards.reader import open_split

ROOT = Path(__file__).parents[3]


def test_the_sample_set_takes_the_whole_road_and_is_made_once(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path))
    script = "from trainyard.prepare.sample import ensure_sample; print(ensure_sample())"
    two = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {patience.communicate(process)[0].strip() for process in two}
    assert len(paths) == 1
    root = Path(paths.pop())
    assert [process.returncode for process in two] == [0, 0]
    for split, count in sample.PER_CLASS.items():
        shards = open_split(root, split)
        assert shards.class_names == list(sample.CLASSES)
        assert [int((shards.labels == label).sum()) for label in range(10)] == [count] * 10
    script = ROOT / "scripts/demo/make_archive.py"
    subprocess.run([sys.executable, script, tmp_path / "again.zip"], check=True, stdout=subprocess.PIPE)
    assert (tmp_path / "again.zip").read_bytes() == (root.parent / "fashion.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "again.zip") as archive:
        assert archive.testzip() is None
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
    (root.parent / "lock").unlink()
    (root.parent / "lock").mkdir()  # nobody can take it, and nobody has to
    assert sample.ensure_sample() == root


def test_missing_pictures_name_the_package(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINYARD_CACHE", str(tmp_path))
    monkeypatch.setenv("TRAINYARD_SAMPLE_SOURCE", str(tmp_path))
    with pytest.raises(UserError, match="apt-get install dataset-fashion-mnist"):
        sample.ensure_sample()
    assert list(tmp_path.rglob("*.zip*")) == []
    (tmp_path / "t10k-images-idx3-ubyte.gz").write_bytes(b"no gzip")
    with pytest.raises(UserError, match="is not an IDX file"):
        sample.ensure_sample()


def test_the_archive_server_answers_as_servers_do(tmp_path):
    import requests

    from tests.fakes import files

    (tmp_path / "a.bin").write_bytes(bytes(range(256)))
    (tmp_path.parent / "secret.txt").write_text("secret")
    with files.running(tmp_path) as server:
        url = f"{server.url}/a.bin"
        whole = requests.get(url, timeout=patience.IDLE)
        assert (whole.status_code, len(whole.content)) == (200, 256)
        head = requests.head(url, timeout=patience.IDLE)
        assert (head.headers["Content-Length"], head.headers["Accept-Ranges"]) == ("256", "bytes")
        for wish, content, shown in (
            ("bytes=0-0", bytes([0]), "bytes 0-0/256"),
            ("bytes=250-", bytes(range(250, 256)), "bytes 250-255/256"),
            ("bytes=-3", bytes([253, 254, 255]), "bytes 253-255/256"),
            ("bytes=100-9999", bytes(range(100, 256)), "bytes 100-255/256"),
        ):
            part = requests.get(url, headers={"Range": wish}, timeout=patience.IDLE)
            assert (part.status_code, part.content, part.headers["Content-Range"]) == (206, content, shown)
            assert part.headers["ETag"] == whole.headers["ETag"]
        assert requests.get(url, headers={"Range": "bytes=256-300"}, timeout=patience.IDLE).status_code == 416
        for missing in ("none", "%2e%2e/secret.txt", ""):
            assert requests.get(f"{server.url}/{missing}", timeout=patience.IDLE).status_code == 404


# A cluster with the archive's pod: whether it is there, its label, and what was copied into it
KUBECTL = r"""#!/bin/bash
echo "$1" >> calls
case $1 in
  get) if [ -e pod ]; then echo "$(cat label)/Running"; fi ;;
  delete) rm -f pod ;;
  apply)
    text=$(cat)
    if [[ $text == *"kind: Pod"* ]]; then touch pod; sed -n 's/.*content: "\([^"]*\)".*/\1/p' <<< "$text" > label; fi ;;
  exec)
    cat > part
    if [ -e breaks ]; then rm breaks; exit 1; fi
    mv part copied ;;
  label) echo "${!##content=}" > label ;;
esac
"""


def test_an_archive_whose_copy_into_the_cluster_broke_off_is_copied_again(tmp_path):
    for name in ("serve", "settings.sh", "serve_archive.py"):
        (tmp_path / "scripts/demo").mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "scripts/demo" / name, tmp_path / "scripts/demo")
    kubectl, archive = tmp_path / "build/bin/kubectl", tmp_path / "set.zip"
    kubectl.parent.mkdir(parents=True)
    kubectl.write_text(KUBECTL)
    kubectl.chmod(0o755)
    archive.write_bytes(b"pictures")
    (tmp_path / "breaks").touch()
    env = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
    command = [str(tmp_path / "scripts/demo/serve"), "team", "image", str(archive)]
    broken, again, same = (patience.run(command, env=env) for _ in range(3))
    assert broken.returncode != 0
    assert (again.returncode, same.returncode) == (0, 0), again.stderr + same.stderr
    assert (tmp_path / "copied").read_bytes() == b"pictures"
    assert (tmp_path / "calls").read_text().split().count("exec") == 2, "the third time there is nothing to do"
