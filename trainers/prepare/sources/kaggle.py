"""A competition's archive at Kaggle: the official client's login, then ranged reads of the signed object behind it.

Nothing is kept on disk. Signed addresses expire and are asked for again. Credentials are looked for where Kaggle's own
client looks, and in the folder of mounted secrets.
"""

import json
import os
from pathlib import Path
from typing import NamedTuple

import requests

from trainers.exits import UserError
from trainers.prepare.sources.base import Traffic
from trainers.prepare.sources.http import HttpSource
from trainers.prepare.sources.retry import PassingError, Patience

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
    folder = Path(os.environ.get("TRAINYARD_SECRETS", "/etc/trainyard/secrets")) / "kaggle"
    config = Path(os.environ.get("KAGGLE_CONFIG_DIR") or Path.home() / ".kaggle")
    for lookup in (os.environ.get, lambda name: _read(folder / name)):
        token, username, key = (lookup(name) for name in ("KAGGLE_API_TOKEN", "KAGGLE_USERNAME", "KAGGLE_KEY"))
        if token:
            return Credentials(None, None, token)
        if username and key:
            return Credentials(username, key, None)
    if token := _read(config / "access_token"):
        return Credentials(None, None, token)
    for path in (folder / "kaggle.json", config / "kaggle.json"):
        if text := _read(path):
            try:
                data = json.loads(text)
                return Credentials(str(data["username"]), str(data["key"]), None)
            except (ValueError, KeyError, TypeError):
                raise UserError(f"{path} is not Kaggle's file of user name and key; {_HOW}") from None
    raise UserError(f"there are no Kaggle credentials in the environment, in {folder} or in {config}; {_HOW}")


def open_competition(competition: str, traffic: Traffic, patience: Patience | None = None) -> HttpSource:
    """Open the archive of all files of a competition."""
    credentials = find_credentials()
    label = f"Kaggle competition {competition}"
    return HttpSource(
        "", traffic, label=label, locate=lambda: _signed_address(competition, credentials), patience=patience
    )


def _signed_address(competition: str, credentials: Credentials) -> str:
    """Ask Kaggle for the archive; its client follows the redirect, whose address is what we want."""
    from kagglesdk import KaggleClient  # type: ignore[import-untyped]
    from kagglesdk.competitions.types import competition_api_service as types  # type: ignore[import-untyped]

    request = types.ApiDownloadDataFilesRequest()
    request.competition_name = competition
    try:
        with KaggleClient(
            username=credentials.username, password=credentials.key, api_token=credentials.token
        ) as client:
            response = client.competitions.competition_api_client.download_data_files(request)
            # The answer is the archive itself, streamed; only its address is of use
            response.close()
            return str(response.url)
    except requests.HTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        if status == 429 or status >= 500:
            wait = error.response.headers.get("Retry-After") if error.response is not None else None
            raise PassingError(f"Kaggle answered {status}", wait) from None
        raise UserError(_explain(status, competition)) from None
    except requests.RequestException as error:
        raise PassingError(f"Kaggle was not reached ({type(error).__name__})") from None


def _explain(status: int, competition: str) -> str:
    """Say what a refusal by Kaggle means."""
    page = f"https://www.kaggle.com/competitions/{competition}"
    if status == 401:
        return f"Kaggle answered 401: it does not know the user name and key, or the token has expired; {_HOW}"
    if status == 403:
        return f"Kaggle answered 403: accept the competition's rules at {page}/rules as the key's owner, then try again"
    if status == 404:
        return f"Kaggle answered 404: there is no competition '{competition}'; see source.competition"
    return f"Kaggle answered {status} for competition '{competition}'; see {page}"


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None
