"""An archive in an object store, read by ranges through fsspec: `s3://` by s3fs, `gs://` by gcsfs, `az://` by adlfs.

Credentials are found where those libraries look (environment, files, the node's or pod's role) and in the folder of
mounted secrets, whose keys have the names of the environment variables. Of a library's error only its kind is shown,
because its text may hold addresses and signatures.
"""

import logging
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

from trainyard.core.exits import UserError
from trainyard.prepare.sources import secrets
from trainyard.prepare.sources.base import Source, Traffic
from trainyard.prepare.sources.retry import PassingError, Patience, Retries

SECRET = "objectstore"
# Of a scheme its package, and keys of a Secret
_STORES = {
    "s3": ("s3fs", "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    "gs": ("gcsfs", "gcs.json"),
    "az": ("adlfs", "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"),
}
_LOOK_AGAIN = 30.0
_LASTING = ("NoCredentials", "PartialCredentials", "CredentialRetrieval", "ParamValidation", "RefreshError",
            "ClientAuthentication", "CredentialUnavailable")  # fmt: skip


class ObjectSource(Source):
    """Reads ranges of one object, and checks now and then that it has not changed."""

    def __init__(
        self,
        url: str,
        traffic: Traffic,
        *,
        endpoint: str = "",
        anonymous: bool = False,
        patience: Patience | None = None,
    ) -> None:
        self.label = url
        self._scheme, _, self._path = url.partition("://")
        self._traffic = traffic
        self._patience = patience or Patience()
        self._retries = Retries(url, traffic, self._patience)
        self._store = _connect(self._scheme, endpoint, anonymous, self._patience)
        self._lock = threading.Lock()
        self._looked = time.monotonic()
        self.size, self.identity = self._look()

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the buffer with the object's bytes from `offset` on."""
        self._look_again()
        self._retries.fill(offset, buffer, self._ask)

    def close(self) -> None:
        """Stop waiting for retries."""
        self._retries.stop()

    def _ask(self, offset: int, length: int) -> Iterator[bytes]:
        self._traffic.add(requests=1)
        try:
            data = self._store.cat_file(self._path, start=offset, end=offset + length)
        except Exception as error:
            raise self._explained(error) from None
        yield data[:length]
        if len(data) < length:
            raise PassingError("the answer was cut short")

    def _look(self) -> tuple[int, str]:
        """Ask for the object's size and the tags that identify its content."""
        failures = 0
        while True:
            try:
                self._store.invalidate_cache()
                found = self._store.info(self._path)
            except Exception as error:
                passing = self._explained(error)
                if not isinstance(passing, PassingError):
                    raise passing from None
                failures += 1
                self._retries.wait_or_give_up(passing, failures)
            else:
                if found.get("type") != "file":
                    raise UserError(f"{self.label} is no object but a folder of them; name the archive in source.url")
                marks = (found.get(key) for key in ("ETag", "etag", "generation", "md5Hash"))
                return int(found["size"]), " ".join(str(mark) for mark in (found["size"], *marks) if mark)

    def _look_again(self) -> None:
        with self._lock:
            if time.monotonic() - self._looked < _LOOK_AGAIN:
                return
            self._looked = time.monotonic()
        if self._look() != (self.size, self.identity):
            raise UserError(f"{self.label} changed while it was read; run the same command once it no longer changes")

    def _explained(self, error: Exception) -> Exception:
        """Translate a library's error into a message without secrets."""
        kind, code = type(error).__name__, _code(error)
        if isinstance(error, FileNotFoundError):
            return UserError(f"{self.label} is not there; check source.url, its region and source.endpoint")
        if isinstance(error, PermissionError) or any(part in kind for part in _LASTING) or code in (400, 401, 403):
            keys = _STORES[self._scheme][1]
            return UserError(
                f"{self.label} was refused ({kind}{f', {code}' if code else ''}): check that the credentials are right,"
                " not expired, and may read it; they are taken from a Secret with the keys of the environment's "
                f"variables, such as {keys}; for a public bucket set source.anonymous"
            )
        if code == 416:
            return UserError(f"{self.label} is empty or became shorter while it was read; check the archive")
        return PassingError(f"the store answered {code}" if code else kind)


def _connect(scheme: str, endpoint: str, anonymous: bool, patience: Patience) -> Any:
    """Make a file system of fsspec's; nothing is asked of the store yet."""
    try:
        if scheme == "s3":
            return _s3(endpoint, anonymous, patience)
        return _gcs(endpoint, anonymous) if scheme == "gs" else _azure(endpoint, anonymous)
    except ImportError as error:
        package = _STORES[scheme][0]
        raise UserError(
            f"{scheme}:// needs the package {package}, which is not installed here: "
            f"`pip install {package}`, or use an image that has it"
        ) from error
    except ValueError as error:
        keys = _STORES[scheme][1]
        raise UserError(
            f"{scheme}://: the credentials are malformed ({type(error).__name__}): check the Secret's keys, "
            f"such as {keys}"
        ) from None


def _s3(endpoint: str, anonymous: bool, patience: Patience) -> Any:
    names = {"key": "AWS_ACCESS_KEY_ID", "secret": "AWS_SECRET_ACCESS_KEY", "token": "AWS_SESSION_TOKEN"}
    found = {} if anonymous else {key: value for key, name in names.items() if (value := _secret(name))}
    region = os.environ.get("AWS_REGION") or _secret("AWS_REGION")
    connect, read = patience.timeout
    store = _file_system(
        "s3",
        anon=anonymous,
        endpoint_url=endpoint or None,
        client_kwargs={"region_name": region} if region else {},
        # Retries are ours, counted and shown
        config_kwargs={
            "max_pool_connections": 64,
            "connect_timeout": connect,
            "read_timeout": read,
            "retries": {"total_max_attempts": 1},
        },
        **found,
    )
    store.retries = 1
    return store


def _gcs(endpoint: str, anonymous: bool) -> Any:
    # Otherwise it asks by gRPC for the kind of bucket, for a minute where nothing answers; ranges do not need it
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    path = secrets.folder(SECRET) / "gcs.json"
    token = "anon" if anonymous else str(path) if path.exists() else None
    options = {"endpoint_url": endpoint} if endpoint else {}
    return _file_system("gs", token=token, **options)


def _azure(endpoint: str, anonymous: bool) -> Any:
    """Make the file system of a storage account; without a key or signature the pod's identity logs in."""
    folder = secrets.folder(SECRET)
    names = {key: f"AZURE_STORAGE_{key.upper()}" for key in ("account_name", "account_key", "sas_token")}
    values = {key: os.environ.get(name) or secrets.read(folder / name) for key, name in names.items()}
    found = {key: value for key, value in values.items() if value}
    if "account_name" not in found:
        raise UserError(
            "source.url is az://CONTAINER/KEY, which names no storage account: set AZURE_STORAGE_ACCOUNT_NAME, as a "
            "variable (dataset.env) or as a key of the Secret in global.secrets.objectstore.existingSecret"
        )
    logging.getLogger("azure").setLevel(logging.ERROR)  # it would print pages of each way to log in that there is not
    if anonymous:
        found = {"account_name": found["account_name"]}
    if endpoint and len(found) > 1:
        # by the host alone the library takes no http, and finds no account's name in any but Azure's own hosts
        named = {"account_name": "AccountName", "account_key": "AccountKey", "sas_token": "SharedAccessSignature"}
        parts = [f"BlobEndpoint={endpoint.rstrip('/')}", *(f"{named[key]}={value}" for key, value in found.items())]
        return _file_system("az", anon=False, connection_string=";".join(parts))
    host = {"account_host": endpoint.partition("://")[2].rstrip("/")} if endpoint else {}
    return _file_system("az", anon=anonymous, **found, **host)


def _file_system(kind: str, **options: Any) -> Any:
    import fsspec

    make: Any = fsspec.filesystem
    return make(kind, skip_instance_cache=True, use_listings_cache=False, **options)


def _secret(name: str) -> str | None:
    """Return a key of the mounted secret; the environment's is found by the library itself and wins."""
    return None if os.environ.get("AWS_ACCESS_KEY_ID") else secrets.read(secrets.folder(SECRET) / name)


def _code(error: BaseException | None) -> int:
    """Find the HTTP status in an error or in what caused it."""
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        for name in ("code", "status", "status_code"):
            if isinstance(getattr(error, name, None), int):
                return int(getattr(error, name))
        error = error.__cause__ or error.__context__
    return 0
