import base64
import json
import shutil
import subprocess
import sys

import pytest

from tests.fakes import files
from tests.fakes.kaggle import KEY, TOKEN, USER, KaggleHandler
from tests.unit.prepare.make_archives import PATIENT, contents
from trainyard.core.exits import UserError
from trainyard.prepare.build import Options, build
from trainyard.prepare.settings import parse


@pytest.fixture
def kaggle(archive, tmp_path, monkeypatch):
    """The fake, and an environment in which Kaggle's client finds it: through a proxy, as its own host is fixed."""
    folder = tmp_path / "kaggle"
    folder.mkdir()
    shutil.copy(archive, folder / "archive.zip")
    handler = type("Kaggle", (KaggleHandler,), {"issued": {}, "logins": []})
    for name in ("KAGGLE_API_TOKEN", "KAGGLE_USERNAME", "KAGGLE_KEY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("KAGGLE_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("TRAINYARD_SECRETS", str(tmp_path / "secrets"))
    monkeypatch.setenv("KAGGLE_API_ENVIRONMENT", "LOCALHOST")
    with files.running(folder, handler) as server:
        monkeypatch.setenv("http_proxy", server.url)
        server.handler = server.server.RequestHandlerClass
        yield server


def attempt(tmp_path, competition="little-imagenet", dataset=""):
    kaggle = {"kind": "kaggle", "competition": competition}
    settings = {
        "source": {"kind": "kaggle-dataset", "dataset": dataset} if dataset else kaggle,
        "out": str(tmp_path / "little"),
        "shard_mb": 1,
        "seekable": False,  # as what it is compared with
    }
    return build(parse(settings), Options(patience=PATIENT))


def login(monkeypatch):
    monkeypatch.setenv("KAGGLE_USERNAME", USER)
    monkeypatch.setenv("KAGGLE_KEY", KEY)


def test_user_name_and_key_from_the_environment(kaggle, prepared, tmp_path, monkeypatch):
    login(monkeypatch)
    attempt(tmp_path)
    assert contents(tmp_path / "little", manifest=False) == contents(prepared, manifest=False)
    assert all(entry.startswith("Basic ") for entry in kaggle.handler.logins)
    assert len(kaggle.handler.issued) == 1


@pytest.mark.parametrize("form", ["token", "pair", "kaggle.json"])
def test_credentials_from_the_mounted_secret(kaggle, tmp_path, form):
    folder = tmp_path / "secrets" / "kaggle"
    folder.mkdir(parents=True)
    if form == "token":
        (folder / "KAGGLE_API_TOKEN").write_text(f"{TOKEN}\n")
    elif form == "pair":
        (folder / "KAGGLE_USERNAME").write_text(USER)
        (folder / "KAGGLE_KEY").write_text(f"{KEY}\n")
    else:
        (folder / "kaggle.json").write_text(json.dumps({"username": USER, "key": KEY}))
    attempt(tmp_path)
    assert (tmp_path / "little/manifest.json").exists()


@pytest.mark.parametrize("form", ["environment", "file", "access_token", "kaggle.json"])
def test_the_other_places_where_kaggles_client_looks(kaggle, tmp_path, monkeypatch, form):
    folder = tmp_path / "config"
    folder.mkdir()
    if form == "environment":
        monkeypatch.setenv("KAGGLE_API_TOKEN", TOKEN)
    elif form == "file":
        (folder / "my-token").write_text(f"{TOKEN}\n")
        monkeypatch.setenv("KAGGLE_API_TOKEN", str(folder / "my-token"))
    elif form == "access_token":
        (folder / "access_token").write_text(TOKEN)
    else:
        (folder / "kaggle.json").write_text(json.dumps({"username": USER, "key": KEY}))
    attempt(tmp_path)
    wanted = "Basic " if form == "kaggle.json" else "Bearer "
    assert {entry[: len(wanted)] for entry in kaggle.handler.logins} == {wanted}


@pytest.mark.parametrize("dataset", ["ada/little", "ada/little/versions/3"])
def test_a_dataset(kaggle, prepared, tmp_path, monkeypatch, dataset):
    login(monkeypatch)
    kaggle.handler.uses = 4
    kaggle.handler.wanted = ("ada", "little", 3 if "versions" in dataset else None)
    attempt(tmp_path, dataset=dataset)
    assert contents(tmp_path / "little", manifest=False) == contents(prepared, manifest=False)
    assert len(kaggle.handler.issued) > 1


def test_a_dataset_that_is_private_or_not_there_is_named(kaggle, tmp_path, monkeypatch):
    login(monkeypatch)
    with pytest.raises(UserError, match=r"there is no dataset 'ada/other'; see source.dataset"):
        attempt(tmp_path, dataset="ada/other")
    kaggle.handler.rules_accepted = False
    with pytest.raises(UserError, match=r"dataset ada/little is private.*https://www.kaggle.com/datasets/ada/little"):
        attempt(tmp_path, dataset="ada/little")


def test_signed_addresses_that_expire_are_renewed(kaggle, prepared, tmp_path, monkeypatch):
    login(monkeypatch)
    kaggle.handler.uses = 4
    attempt(tmp_path)
    assert len(kaggle.handler.issued) > 1
    assert contents(tmp_path / "little", manifest=False) == contents(prepared, manifest=False)


def test_throttling_is_tolerated(kaggle, tmp_path, monkeypatch):
    login(monkeypatch)
    kaggle.handler.busy = 2
    attempt(tmp_path)
    assert (tmp_path / "little/manifest.json").exists()


def test_rules_not_accepted_names_their_page(kaggle, tmp_path, monkeypatch):
    login(monkeypatch)
    kaggle.handler.rules_accepted = False
    with pytest.raises(UserError, match=r"403: accept .*https://www.kaggle.com/competitions/little-imagenet/rules"):
        attempt(tmp_path)


def test_a_wrong_key_names_the_secret_but_not_the_key(kaggle, tmp_path, monkeypatch):
    login(monkeypatch)
    monkeypatch.setenv("KAGGLE_KEY", "wrong-secret-key")
    with pytest.raises(UserError, match=r"401.*KAGGLE_USERNAME and KAGGLE_KEY") as caught:
        attempt(tmp_path)
    assert "wrong-secret" not in str(caught.value)


def test_no_credentials_at_all(kaggle, tmp_path):
    with pytest.raises(UserError, match=r"no Kaggle credentials.*keep it in a Secret"):
        attempt(tmp_path)


def test_an_unknown_competition(kaggle, tmp_path, monkeypatch):
    login(monkeypatch)
    with pytest.raises(UserError, match=r"no competition 'another'"):
        attempt(tmp_path, "another")


SCRIPT = """
import logging, sys, traceback
import requests
from trainyard.prepare.command import main
logging.basicConfig(level="DEBUG")
def attempt(out, *breaks):
    kept = [(where, name, getattr(where, name)) for where, name in breaks]
    for where, name in breaks:
        setattr(where, name, lambda *a, **k: 1 / 0)
    try:
        main(["build", "--set", "source.kind=kaggle", "--set", "source.competition=" + sys.argv[2],
              "--set", f"out={sys.argv[1]}/{out}", "--set", "shard_mb=1"])
    except BaseException:
        traceback.print_exc()
    for where, name, value in kept:
        setattr(where, name, value)
attempt("little")
from trainyard.prepare.sources import http, kaggle
attempt("a", (kaggle.requests.Session, "get"))
attempt("b", (http.HttpSource, "_compare"))
attempt("c", (requests.Response, "close"))
"""


def test_nothing_secret_is_printed_kept_or_in_argv(kaggle, tmp_path):
    """As in a pod, with every logger awake: a sound run, then bugs at each place that knows a secret."""
    folder = tmp_path / "secrets" / "kaggle"
    folder.mkdir(parents=True)
    (folder / "KAGGLE_USERNAME").write_text(USER)
    (folder / "KAGGLE_KEY").write_text(KEY)
    kaggle.handler.uses = 4
    basic = base64.b64encode(f"{USER}:{KEY}".encode()).decode()
    line = [sys.executable, "-c", SCRIPT, str(tmp_path / "out"), "little-imagenet"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    printed = done.stdout + done.stderr
    assert printed.count("Traceback") == 3
    assert "GET http://127.0.0.1" in printed
    for secret in (KEY, basic, "signed-"):
        assert secret not in printed
        assert not [path for path in (tmp_path / "out").rglob("*.json") if secret in path.read_text()]
    assert (tmp_path / "out/little/manifest.json").exists()
