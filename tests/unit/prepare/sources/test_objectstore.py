import importlib.util
import traceback
from pathlib import Path

import pytest

from tests.fakes import s3
from tests.unit.prepare.make_archives import HASTE, PATIENT, contents, imagenet, pictures, write_tar, write_zip
from trainyard.core.exits import ExitError, InputError, UserError
from trainyard.prepare.build import Options, build
from trainyard.prepare.settings import parse
from trainyard.prepare.sources import objectstore
from trainyard.prepare.sources.base import Traffic

MEMBERS = imagenet(90, 30)
LARGE = imagenet(300, 90)
ADDRESS = {"kind": "objectstore", "url": "s3://pictures/team a/little.zip"}


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    root = tmp_path_factory.mktemp("objects")
    write_zip(root / "little.zip", LARGE)
    write_tar(root / "little.tgz", MEMBERS, "w:gz")
    return root


@pytest.fixture(scope="module")
def running_store(objects):
    with s3.running() as store:
        store.client.create_bucket(Bucket="pictures", CreateBucketConfiguration={"LocationConstraint": s3.REGION})
        for path in objects.iterdir():
            store.client.put_object(Bucket="pictures", Key=f"team a/{path.name}", Body=path.read_bytes())
        yield store


@pytest.fixture
def store(running_store, tmp_path, monkeypatch):
    """The store, and an environment in which nothing but the test says how to log in."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("TRAINYARD_SECRETS", str(tmp_path / "secrets"))
    running_store.public, running_store.fault = False, lambda number, request: None
    running_store.requests.clear()
    return running_store


def login(tmp_path: Path) -> None:
    """Put the credentials where the chart mounts a Secret."""
    folder = tmp_path / "secrets" / "objectstore"
    folder.mkdir(parents=True)
    (folder / "AWS_ACCESS_KEY_ID").write_text(f"{s3.KEY}\n")
    (folder / "AWS_SECRET_ACCESS_KEY").write_text(s3.SECRET)
    (folder / "AWS_REGION").write_text(s3.REGION)


def attempt(store, out, how=HASTE, **more):
    source = {**ADDRESS, "endpoint": store.url, **more}
    settings = {"source": source, "out": str(out), "shard_mb": 1, "workers": 4, "seekable": False}  # as `prepared`
    return build(parse(settings), Options(patience=how))


def test_a_zip_is_read_by_ranges_with_the_mounted_secret(store, prepared, tmp_path):
    login(tmp_path)
    attempt(store, tmp_path / "little")
    assert contents(tmp_path / "little", manifest=False) == contents(prepared, manifest=False)
    gets = [found for method, found in store.requests if method == "GET"]
    assert gets
    assert all(found.startswith("bytes=") for found in gets)
    assert b"endpoint" in (tmp_path / "little/manifest.json").read_bytes()


def test_a_gzipped_tar_is_read_as_a_stream_with_credentials_of_the_environment(store, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.SECRET)
    attempt(store, tmp_path / "little", url="s3://pictures/team a/little.tgz")
    assert len(pictures(tmp_path / "little", "train")) == 90


def test_a_public_bucket_needs_no_credentials(store, tmp_path):
    store.client.put_object_acl(Bucket="pictures", Key="team a/little.zip", ACL="public-read")
    store.public = True
    attempt(store, tmp_path / "little", anonymous=True)
    assert (tmp_path / "little/manifest.json").exists()


def test_throttling_and_errors_are_tolerated_and_counted(store, prepared, tmp_path, capsys):
    login(tmp_path)
    store.fault = lambda number, request: ("503 Slow Down", "SlowDown") if number % 3 == 0 else None
    attempt(store, tmp_path / "little", PATIENT)
    assert contents(tmp_path / "little", manifest=False) == contents(prepared, manifest=False)
    assert " 0 retries" not in capsys.readouterr().err


def test_a_store_that_stays_broken_ends_within_bounds(store, tmp_path):
    login(tmp_path)
    store.fault = lambda number, request: ("500 Internal Server Error", "InternalError") if number > 3 else None
    with pytest.raises(ExitError, match=r"little.zip could not be read: the store answered 500, 4 times in a row"):
        attempt(store, tmp_path / "little")


def test_a_short_answer_is_continued(store, objects, tmp_path, monkeypatch):
    login(tmp_path)
    source = objectstore.ObjectSource(ADDRESS["url"], objectstore.Traffic(), endpoint=store.url, patience=HASTE)
    real, asked = source._store.cat_file, []

    def half(path, start, end):
        asked.append((start, end))
        return real(path, start=start, end=end)[: max(1, (end - start) // 2)]

    monkeypatch.setattr(source._store, "cat_file", half)
    assert bytes(source.read_range(100, 1000)) == (objects / "little.zip").read_bytes()[100:1100]
    assert asked[0] == (100, 1100)
    assert asked[1] == (600, 1100)


def test_an_object_that_changes_meanwhile_is_noticed(store, tmp_path, monkeypatch):
    login(tmp_path)
    monkeypatch.setattr(objectstore, "_LOOK_AGAIN", 0.0)

    def replace(number, request):
        if number == 6:
            store.client.put_object(Bucket="pictures", Key="changing.zip", Body=b"x" * 1_000_000)

    body = store.client.get_object(Bucket="pictures", Key="team a/little.zip")["Body"].read()
    store.client.put_object(Bucket="pictures", Key="changing.zip", Body=body)
    store.requests.clear()
    store.fault = replace
    with pytest.raises(UserError, match=r"s3://pictures/changing.zip changed while it was read"):
        attempt(store, tmp_path / "little", url="s3://pictures/changing.zip")


@pytest.mark.parametrize("url", ["s3://pictures/none.zip", "s3://no-such-bucket/a.zip"])
def test_what_is_not_there_is_named(store, tmp_path, url):
    login(tmp_path)
    with pytest.raises(UserError, match=rf"{url} is not there; check source.url"):
        attempt(store, tmp_path / "little", url=url)


def test_a_folder_of_objects_is_not_an_archive(store, tmp_path):
    login(tmp_path)
    with pytest.raises(UserError, match="no object but a folder"):
        attempt(store, tmp_path / "little", url="s3://pictures/team a")


def test_no_wrong_or_expired_credentials_are_named_and_never_shown(store, tmp_path, monkeypatch, capfd):
    with pytest.raises(UserError, match=r"NoCredentials.*keys of the environment's variables, such as AWS_ACCESS_KEY"):
        attempt(store, tmp_path / "little")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDOTHER")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.SECRET)
    with pytest.raises(UserError, match=r"was refused .*403") as caught:
        attempt(store, tmp_path / "little")
    shown = "".join(traceback.format_exception(caught.value)) + "".join(capfd.readouterr())
    for secret in (s3.SECRET, "AKIDOTHER", "Signature"):
        assert secret not in shown


@pytest.mark.parametrize(("scheme", "package"), [("gs", "gcsfs"), ("az", "adlfs")])
def test_a_store_without_its_package_names_what_installs_it(scheme, package, tmp_path, monkeypatch):
    source = {"kind": "objectstore", "url": f"{scheme}://pictures/little.zip"}
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "pictures")
    if importlib.util.find_spec(package):
        pytest.skip(f"{package} is installed")
    said = rf"{scheme}:// needs the package {package}.*: `pip install {package}`, or"
    with pytest.raises(UserError, match=said) as caught:
        build(parse({"source": source, "out": str(tmp_path / "little")}))
    assert not isinstance(caught.value, InputError), "waiting brings no package"


def test_azure_needs_the_name_of_the_account(tmp_path, monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    monkeypatch.setenv("TRAINYARD_SECRETS", str(tmp_path))
    source = {"kind": "objectstore", "url": "az://pictures/little.zip"}
    with pytest.raises(UserError, match="set AZURE_STORAGE_ACCOUNT_NAME"):
        build(parse({"source": source, "out": str(tmp_path / "little")}))


AZURE = {"AZURE_STORAGE_ACCOUNT_NAME": "team", "AZURE_STORAGE_ACCOUNT_KEY": "c2VjcmV0", "AZURE_STORAGE_SAS_TOKEN": ""}


@pytest.fixture
def azure(tmp_path, monkeypatch):
    """An account's name and key in the environment, and the options with which the library would be called."""
    asked: list[dict] = []
    for name, value in AZURE.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TRAINYARD_SECRETS", str(tmp_path))
    monkeypatch.setattr(objectstore, "_file_system", lambda kind, **options: asked.append(options) or asked)
    return asked


def connect(endpoint: str, anonymous: bool = False) -> None:
    objectstore._connect("az", endpoint, anonymous, HASTE)


def test_a_key_of_azures_reads_from_any_address(azure):
    """By the host alone, adlfs takes no http, and knows no account of a host that does not begin with its name."""
    connect("")
    assert azure[-1] == {"anon": False, "account_name": "team", "account_key": "c2VjcmV0"}
    connect("http://azurite:10000/team/")
    said = "BlobEndpoint=http://azurite:10000/team;AccountName=team;AccountKey=c2VjcmV0"
    assert azure[-1] == {"anon": False, "connection_string": said}
    connect("https://team.blob.core.chinacloudapi.cn", anonymous=True)
    assert azure[-1] == {"anon": True, "account_name": "team", "account_host": "team.blob.core.chinacloudapi.cn"}


def test_credentials_that_are_malformed_are_named_and_not_shown(azure, monkeypatch):
    def refuse(kind, **options):
        raise ValueError(f"unable to connect to account for {options['account_key']}")

    monkeypatch.setattr(objectstore, "_file_system", refuse)
    with pytest.raises(UserError, match=r"credentials are malformed .*such as AZURE_STORAGE_ACCOUNT_NAME") as caught:
        connect("")
    assert "c2VjcmV0" not in "".join(traceback.format_exception(caught.value))


class AzureError(Exception):
    """As azure.core's errors are: the status is the error's own, and its response is no dict."""

    def __init__(self, status: int | None) -> None:
        super().__init__("Server failed to authenticate the request")
        self.status_code, self.response = status, object()


class ClientAuthenticationError(AzureError):
    """No way to log in has answered: there was no response."""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (AzureError(403), "was refused"),
        (ClientAuthenticationError(None), "was refused"),
        (AzureError(416), "is empty or became"),
    ],
    ids=["403", "no login", "416"],
)
def test_what_azure_refuses_is_told_at_once(error, said, monkeypatch):
    asked = []

    class Store:
        def invalidate_cache(self) -> None:
            """Nothing is kept."""

        def info(self, path):
            asked.append(path)
            raise error

    monkeypatch.setattr(objectstore, "_connect", lambda *_: Store())
    with pytest.raises(UserError, match=said):
        objectstore.ObjectSource("az://pictures/little.zip", Traffic(), patience=HASTE)
    assert asked == ["pictures/little.zip"]
