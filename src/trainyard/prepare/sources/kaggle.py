"""An archive at Kaggle, a competition's or a dataset's: the official client's login, then ranges of the signed object.

Nothing is kept on disk. Signed addresses expire and are asked for again. Credentials are looked for where Kaggle's own
client looks, and in the folder of mounted secrets.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import requests

from trainyard.core.exits import UserError
from trainyard.core.files import home, parse_json
from trainyard.prepare.sources import secrets
from trainyard.prepare.sources.base import Traffic
from trainyard.prepare.sources.http import HttpSource
from trainyard.prepare.sources.retry import PassingError, Patience

_HOW = (
    "make a token on Kaggle's settings page and keep it in a Secret with the keys KAGGLE_USERNAME and KAGGLE_KEY, or "
    "KAGGLE_API_TOKEN, or kaggle.json"
)


class Credentials(NamedTuple):
    """Either a token, or a user name and key. Never printed."""

    username: str | None
    key: str | None
    token: str | None

    def __repr__(self) -> str:
        """Hide what is secret from logs and tracebacks."""
        return "Credentials(...)"


def find_credentials() -> Credentials:
    """Look in the environment, in the mounted secret, and where Kaggle's client keeps its files."""
    folder = secrets.folder("kaggle")
    config = Path(os.environ.get("KAGGLE_CONFIG_DIR") or (home() or Path("/")) / ".kaggle")
    for lookup in (os.environ.get, lambda name: secrets.read(folder / name)):
        token, username, key = (lookup(name) for name in ("KAGGLE_API_TOKEN", "KAGGLE_USERNAME", "KAGGLE_KEY"))
        if token:
            # Kaggle's client takes the name of a file there as well
            return Credentials(None, None, secrets.read(Path(token)) or token)
        if username and key:
            return Credentials(username, key, None)
    if token := secrets.read(config / "access_token"):
        return Credentials(None, None, token)
    for path in (folder / "kaggle.json", config / "kaggle.json"):
        if text := secrets.read(path):
            try:
                data = parse_json(text)
                return Credentials(str(data["username"]), str(data["key"]), None)
            except (ValueError, KeyError, TypeError):
                raise UserError(f"{path} is not Kaggle's file of user name and key; {_HOW}") from None
    raise UserError(f"there are no Kaggle credentials in the environment, in {folder} or in {config}; {_HOW}")


def open_competition(competition: str, traffic: Traffic, patience: Patience | None = None) -> HttpSource:
    """Open the archive of all files of a competition."""
    from kagglesdk.competitions.types import competition_api_service as types  # type: ignore[import-untyped]

    request = types.ApiDownloadDataFilesRequest()
    request.competition_name = competition

    def ask(client: Any) -> Any:
        return client.competitions.competition_api_client.download_data_files(request)

    page = f"https://www.kaggle.com/competitions/{competition}"
    download = _Download(f"competition {competition}", page, f"{page}/rules", "source.competition")
    return _open(download, ask, traffic, patience)


def open_dataset(dataset: str, traffic: Traffic, patience: Patience | None = None) -> HttpSource:
    """Open the archive of all files of a dataset, OWNER/NAME or OWNER/NAME/versions/N."""
    from kagglesdk.datasets.types import dataset_api_service as types  # type: ignore[import-untyped]

    owner, name, *version = dataset.split("/")
    request = types.ApiDownloadDatasetRequest()
    request.owner_slug, request.dataset_slug = owner, name
    if version:
        request.dataset_version_number = int(version[1])

    def ask(client: Any) -> Any:
        return client.datasets.dataset_api_client.download_dataset(request)

    page = f"https://www.kaggle.com/datasets/{owner}/{name}"
    return _open(_Download(f"dataset {dataset}", page, "", "source.dataset"), ask, traffic, patience)


class _Download(NamedTuple):
    """The words for a request to Kaggle, for messages."""

    name: str
    page: str
    # Where its rules are accepted, if it has any
    rules: str
    setting: str


def _open(download: _Download, ask: Callable[[Any], Any], traffic: Traffic, patience: Patience | None) -> HttpSource:
    credentials = find_credentials()
    label = f"Kaggle {download.name}"
    return HttpSource(
        "", traffic, label=label, locate=lambda: _signed_address(download, ask, credentials), patience=patience
    )


def _signed_address(download: _Download, ask: Callable[[Any], Any], credentials: Credentials) -> str:
    """Ask Kaggle for the archive; its client follows the redirect, whose address is returned."""
    from kagglesdk import KaggleClient  # type: ignore[import-untyped]

    try:
        with KaggleClient(
            username=credentials.username, password=credentials.key, api_token=credentials.token
        ) as client:
            response = ask(client)
            # The answer is the archive itself, streamed; only its address is of use
            response.close()
            return str(response.url)
    except requests.HTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        if status == 429 or status >= 500:
            wait = error.response.headers.get("Retry-After") if error.response is not None else None
            raise PassingError(f"Kaggle answered {status}", wait) from None
        raise UserError(_explain(status, download)) from None
    except requests.RequestException as error:
        raise PassingError(f"Kaggle was not reached ({type(error).__name__})") from None


def _explain(status: int, download: _Download) -> str:
    """Explain a refusal by Kaggle."""
    if status == 401:
        return f"Kaggle answered 401: it does not know the user name and key, or the token has expired; {_HOW}"
    if status == 403 and download.rules:
        return f"Kaggle answered 403: accept the rules at {download.rules} as the key's owner, then try again"
    if status == 403:
        return (
            f"Kaggle answered 403: {download.name} is private, or the key's owner may not read it; see {download.page}"
        )
    if status == 404:
        kind, _, name = download.name.partition(" ")
        return f"Kaggle answered 404: there is no {kind} '{name}'; see {download.setting}"
    return f"Kaggle answered {status} for {download.name}; see {download.page}"
