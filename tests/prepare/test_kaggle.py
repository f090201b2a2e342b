import json
import shutil

import pytest

from tests.fakes import files
from tests.fakes.kaggle import KEY, TOKEN, USER, KaggleHandler
from tests.prepare.archives import HASTE, contents
from trainers.exits import UserError
from trainers.prepare.build import Options, build
from trainers.prepare.config import parse


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


def attempt(tmp_path, competition="little-imagenet"):
    settings = {
        "source": {"kind": "kaggle", "competition": competition},
        "out": str(tmp_path / "little"),
        "shard_mb": 1,
    }
    return build(parse(settings), Options(patience=HASTE))


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


def test_signed_addresses_that_expire_are_renewed(kaggle, prepared, tmp_path, monkeypatch):
    login(monkeypatch)
    kaggle.handler.uses = 4
    attempt(tmp_path)
    assert len(kaggle.handler.issued) > 1
    assert contents(tmp_path / "little", manifest=False) == contents(prepared, manifest=False)


def test_throttling_is_borne(kaggle, tmp_path, monkeypatch):
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


def test_nothing_secret_is_printed_or_kept(kaggle, tmp_path, monkeypatch, capfd):
    login(monkeypatch)
    kaggle.handler.uses = 4
    attempt(tmp_path)
    printed = "".join(capfd.readouterr())
    kept = b"".join(path.read_bytes() for path in (tmp_path / "little").rglob("*") if path.is_file())
    for secret in (KEY, "signed-"):
        assert secret not in printed
        assert secret.encode() not in kept
