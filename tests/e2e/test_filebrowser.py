"""The file browser on the cluster: access to the claims, and where its password is."""

import base64
import json
import random
import re
import secrets
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests import documents, patience
from tests.e2e import cluster
from tests.e2e.cases import nested
from tests.e2e.cluster import get, kubectl, until, why
from tests.images.page import ask, form, listing, log_in

pytestmark = [pytest.mark.e2e, pytest.mark.takes(30)]
RELEASE, NAME = "files", "files-filebrowser"
REFUSED = (401, 403)
SHARD, SUMMARY = "/data/imagenet/train/shard-00000.tar", "/results/runs/resnet50/summary.json"
BYTES = random.Random(7).randbytes(3 << 20)  # of the shard
FORM = form(act="login", cppwd="wrong password")
# Beside examples/filebrowser/page.yaml: claims of the release's own
CLAIMS = {
    "global.storage.data": {"existingClaim": "", "size": "64Mi"},
    "global.storage.results": {"existingClaim": "", "size": "64Mi", "subPath": "team-a"},
    "storage.enabled": True,
}
# Fills the claims, then asks the page by its Service's name, as any pod can: for a file without a password, and with a
# wrong one as a proxy that speaks TLS passes the form on; a page that does not believe the proxy refuses the form.
FILL = f"""
import os, random, sys, time, urllib.error, urllib.request
os.makedirs("/data/imagenet/train"); os.makedirs("/results/runs/resnet50")
open("{SHARD}", "wb").write(random.Random(7).randbytes(3 << 20))
open("{SUMMARY}", "w").write('{{"top1": 93.5}}')
for name, to in (("password", "/etc/filebrowser/password"), ("up", "../../etc/group"), ("newest", "runs/resnet50")):
    os.symlink(to, f"/results/{{name}}")
while True:
    try:
        print(urllib.request.urlopen("http://{NAME}/", timeout=60).status, flush=True)
        urllib.request.urlopen("http://{NAME}{SUMMARY}", timeout=60)
        sys.exit("a file without a password")
    except urllib.error.HTTPError as error:
        print(error.code, flush=True)
        proxied = {{"Origin": "https://files.example.com", "Host": "files.example.com", "X-Forwarded-Proto": "https",
                   "X-Forwarded-For": "192.0.2.7", "Content-Type": {FORM[1]!r}}}
        print(urllib.request.urlopen(urllib.request.Request("http://{NAME}/", {FORM[0]!r}, proxied), timeout=60).status)
        sys.exit(error.code not in {REFUSED})
    except OSError:
        time.sleep(0.25)
"""


@dataclass
class Page:
    """The page, reached as its notes say, and its password."""

    url: str
    password: str
    namespace: str

    def path(self, path: str, password: str | None = None, *args, **kwargs):
        return ask(self.url + path, self.password if password is None else password, *args, **kwargs)


def filler(image: str) -> dict:
    """Return a pod that writes the claims, at their folders of the values."""
    claims = {"data": "", "results": "team-a"}
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000,
                            "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{
            "name": "fill", "image": image, "command": ["python3", "-c", FILL],
            "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            "volumeMounts": [{"name": k, "mountPath": f"/{k}", "subPath": v} for k, v in claims.items()],
        }],
        "volumes": [{"name": k, "persistentVolumeClaim": {"claimName": f"{RELEASE}-{k}"}} for k in claims],
    }  # fmt: skip
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "fill"}, "spec": pod}


def installing(namespace: str) -> list[str]:
    """Return the page's commands that install it: Secret, release, wait, forwarded port."""
    return documents.text("filebrowser.md", "port-forward", {"-n vision": f"-n {namespace}"}).splitlines()


@contextmanager
def forwarded(namespace: str) -> Iterator[str]:
    """Forward a port of this machine to the page, by kubectl port-forward; yields the page's address.

    It ends at once where a busy API server or kubelet has not taken its connection.
    """
    line = installing(namespace)[3].replace(" 8080:http", " :http")  # any free port of this machine
    command, said = ["bash", "-euc", f"exec {line}"], ""
    for _ in range(cluster.TRIES):
        forward = subprocess.Popen(command, cwd=cluster.ROOT, env=cluster.ENV, stdout=subprocess.PIPE, text=True)
        if said := forward.stdout.readline():
            break
        forward.wait()
    try:
        yield f"http://127.0.0.1:{re.search(r'127.0.0.1:([0-9]+)', said)[1]}"
    finally:
        forward.terminate()
        forward.wait(patience.IDLE)


def upgrade(namespace: str, image: dict[str, str], **values: object) -> None:
    """Run helm upgrade --install with the documents' own values file and what this cluster needs beside it."""
    own = nested(CLAIMS | {"global.image": image} | values)
    line = installing(namespace)[1].replace("helm ", "helm3 ", 1)
    cluster.run("bash", "-euc", f"{line} -f -", stdin=json.dumps(own))


def kept_password(namespace: str) -> str:
    """Return the password that the Secret holds."""
    secret = json.loads(kubectl("get", "secret", "page", "-n", namespace, "-o", "json"))
    return base64.b64decode(secret["data"]["password"]).decode()


@pytest.fixture(scope="module")
def page(namespace, image) -> Iterator[Page]:
    cluster.run("bash", "-euc", installing(namespace)[0])
    upgrade(namespace, image)
    pod = filler(f"{image['registry']}/trainyard-filebrowser:{image['tag']}")
    kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(pod))
    cluster.run("bash", "-euc", installing(namespace)[2])
    until(
        lambda: why(RELEASE, namespace) + kubectl("logs", "-n", namespace, "fill", check=False),
        lambda: get("pods", namespace, fields="metadata.name=fill")[0]["status"]["phase"] == "Succeeded",
    )
    with forwarded(namespace) as url:
        yield Page(url, kept_password(namespace), namespace)


@pytest.mark.parametrize("password", ["", "wrong password"])
def test_without_the_password_there_is_no_file(page: Page, password: str):
    for path in (SHARD, SUMMARY, "/results/?ls", "/data/?zip"):
        answer = page.path(path, password)
        assert answer.status in REFUSED, path
        assert b"top1" not in answer.body
        assert BYTES[:64] not in answer.body
    assert b"results" not in page.path("/?ls", password).body


def test_with_it_there_are_listings_and_ranges_of_the_claims_own_bytes(page: Page):
    assert listing(f"{page.url}/results/", page.password) == {"runs/", "newest/"}  # its folder of the claim, no more
    assert page.path("/results/newest/summary.json").body == b'{"top1": 93.5}'
    part = page.path(SHARD, Range="bytes=1000000-1999999")
    assert (part.status, part.headers["Content-Range"]) == (206, f"bytes 1000000-1999999/{len(BYTES)}")
    assert part.body == BYTES[1_000_000:2_000_000]
    assert page.path(SHARD).body == BYTES
    for link in ("/results/password", "/results/up"):
        assert page.path(link).status in (403, 404)


def test_the_documents_commands_fetch_files(page: Page, tmp_path):
    """The fixture ran those that install it."""
    own = {"-n vision": f"-n {page.namespace}", "http://localhost:8080": page.url}
    script = documents.text("filebrowser.md", "curl -u", own)
    done = cluster.run("bash", "-euc", f"cd {tmp_path}\n{script}")
    assert '"href": "resnet50/"' in done.stdout
    assert (tmp_path / "shard-00000.tar").read_bytes() == BYTES[: 1 << 20]
    with zipfile.ZipFile(tmp_path / "run.zip") as archive:
        assert archive.read("resnet50/summary.json") == b'{"top1": 93.5}'


def test_nothing_is_written(page: Page):
    body, kind = form(act="bput", f=("new.txt", b"new"))
    assert page.path("/results/new.txt", None, "PUT", b"new").status == 403
    assert page.path("/results/", None, "POST", body, Content_Type=kind).status == 403
    assert page.path(SUMMARY, None, "DELETE").status == 403
    for folder in ("data", "results"):
        done = cluster.run("kubectl", "exec", "-n", page.namespace, f"deployment/{NAME}", "--", "touch",
                           f"/srv/{folder}/new", check=False)  # fmt: skip
        assert "Read-only file system" in done.stderr
    found = kubectl("exec", "-n", page.namespace, f"deployment/{NAME}", "--", "find", "/srv", "-type", "f")
    assert sorted(found.split()) == [f"/srv{SHARD}", f"/srv{SUMMARY}"]


def test_the_password_is_in_the_secret_and_nowhere_else(page: Page):
    page.path(SUMMARY, "")  # so that there is something to log
    ask(f"{page.url}/results/?pw={page.password}")
    log_in(page.url, page.password)
    place = ("-n", page.namespace)
    said = {
        "release": "".join(cluster.helm("get", what, RELEASE, *place).stdout for what in ("all", "manifest", "values")),
        "objects": kubectl("get", "deployments,replicasets,pods,configmaps,services,events", *place, "-o", "yaml"),
        "description": kubectl("describe", "pods", *place),
        "log": kubectl("logs", *place, f"deployment/{NAME}"),
        "processes": kubectl("exec", *place, f"deployment/{NAME}", "--", "bash", "-c", "cat /proc/1/{cmdline,environ}"),
    }  # fmt: skip
    assert "GET  /results/" in said["log"]
    for where, text in said.items():
        assert len(text) > 100, where
        for form_of_it in (page.password, base64.b64encode(page.password.encode()).decode()):
            assert form_of_it not in text, where
    assert kept_password(page.namespace) == page.password
    assert len(page.password) == 24


def test_a_new_password_needs_no_restart(page: Page):
    cookie = log_in(page.url, page.password)
    assert page.path(SUMMARY, "", Cookie=cookie).status == 200
    old, page.password = page.password, secrets.token_urlsafe(18)
    patch = json.dumps({"stringData": {"password": page.password}})
    kubectl("patch", "secret", "page", "-n", page.namespace, "-p", patch)
    # The kubelet looks at Secrets about once a minute, and at once where a pod changes
    kubectl(
        "annotate", "pods", "-n", page.namespace, "-l", "app.kubernetes.io/name=filebrowser", "example.com/look=now"
    )

    place = ("-n", page.namespace, f"deployment/{NAME}")

    def taken() -> bool:
        return "workers OK" in kubectl("logs", *place).partition("the password has changed")[2]

    until("the page takes the new password", taken)
    with forwarded(page.namespace) as url:
        file = url + SUMMARY
        assert ask(file, page.password).status == 200
        assert ask(file, old).status in REFUSED
        assert ask(file, "", Cookie=cookie).status in REFUSED
    (pod,) = get("pods", page.namespace, "app.kubernetes.io/name=filebrowser")
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0


def test_a_missing_secret_is_named(page: Page, image):
    upgrade(page.namespace, image, **{"filebrowser.auth.existingSecret": "missing"})
    seen = [""]

    def named() -> bool:
        seen[0] = why(RELEASE, page.namespace)
        return 'secret "missing" not found' in seen[0] and "create that Secret in this namespace" in seen[0]

    until(lambda: seen[0], named, pause=1.0)
    assert f"deployment/{NAME}" in seen[0]
