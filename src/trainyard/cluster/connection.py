"""A connection to the user's cluster by the Python client `kubernetes`: kubeconfig, login, certificates and proxies."""

import contextlib
import functools
import importlib
import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]  # typeshed lacks it

import urllib3
import yaml

from trainyard.cluster.errors import KubeError
from trainyard.core.files import home

ROOT = Path(__file__).resolve().parents[3]
OR_OURS = ", or run `make cluster`" if (ROOT / "hack" / "cluster").is_dir() else ""  # in a checkout only
IMPORT_ALL = ("kubernetes", "kubernetes.client", "kubernetes.utils")  # packages that import all of the client


def import_part(name: str) -> Any:
    """Import a module of `kubernetes` without its 800 classes for objects and calls, which take 0.3 s."""
    if "kubernetes" not in sys.modules:
        with contextlib.suppress(ImportError), bare_packages():  # as of a version that is put together otherwise
            return importlib.import_module(name)
    return importlib.import_module(name)


@contextlib.contextmanager
def bare_packages() -> Iterator[None]:
    """Let packages that import nothing stand for IMPORT_ALL; afterwards `import kubernetes` finds the whole."""
    try:
        for name in IMPORT_ALL:
            spec = importlib.util.find_spec(name)
            assert spec  # cluster/__init__.py has looked
            sys.modules[name] = importlib.util.module_from_spec(spec)
        bare: Any = sys.modules["kubernetes.client"]
        bare.Configuration = importlib.import_module("kubernetes.client.configuration").Configuration
        bare.ApiClient = lambda **given: importlib.import_module("kubernetes.client").ApiClient(**given)  # for OIDC
        yield
    finally:
        for name in [one for one in sys.modules if f"{one}.".startswith("kubernetes.")]:
            del sys.modules[name]


class Client(NamedTuple):
    """Connections to an API server, and what they are made by.

    The package's own requests have changed from one major version to the next; these two have not.
    """

    settings: Any  # a kubernetes.client.Configuration
    pool: urllib3.PoolManager

    def login(self) -> dict[str, str]:
        """Return the headers that say who asks; a login that has expired is renewed."""
        return {one["key"]: one["value"] for one in self.settings.auth_settings().values()}


def kubeconfig() -> str:
    """Return the user's KUBECONFIG, else that of `make cluster` where it is, else kubectl's own place."""
    own = ROOT / "build" / "kubeconfig"
    return os.environ.get("KUBECONFIG") or str(own if own.exists() else (home() or Path("/")) / ".kube" / "config")


_ONE_AT_A_TIME = threading.Lock()


def client() -> Client:
    """Return the client, connected as the kubeconfig's current context says, else as a pod of the cluster is.

    Raises KubeError where there is neither.
    """
    with _ONE_AT_A_TIME:  # the package writes a certificate to a file that a second thread would read half-written
        return _connected()


@functools.cache
def _connected() -> Client:
    logging.getLogger("urllib3").setLevel(logging.ERROR)  # tries that fail are told in our words
    urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)  # it is the kubeconfig that says so
    config, rest = import_part("kubernetes.config"), import_part("kubernetes.client.rest")
    settings = config.kube_config.Configuration()
    settings.proxy, chosen = None, ""
    try:
        merged = config.kube_config.KubeConfigMerger(kubeconfig())
        if merged.config is not None:
            loader = config.kube_config.KubeConfigLoader(config_dict=merged.config)
            loader.load_and_set(settings)
            chosen = proxy_url(merged.config.value, loader.current_context["context"]["cluster"])
        elif "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config(client_configuration=settings)
        else:
            raise KubeError(f"there is no kubeconfig {kubeconfig()}: name yours in KUBECONFIG{OR_OURS}")
    except (config.ConfigException, OSError, ValueError) as error:
        raise KubeError(f"KUBECONFIG {kubeconfig()}: {error}") from error
    except (yaml.YAMLError, TypeError, KeyError, AttributeError) as error:
        raise KubeError(f"KUBECONFIG {kubeconfig()} is not a kubeconfig: {error}") from error
    except KubeError:
        raise
    except Exception as error:  # of OIDC's libraries and servers
        said = " ".join(str(error).split())
        raise KubeError(f"KUBECONFIG {kubeconfig()}: its login was not renewed: {said}") from error
    settings.proxy = chosen or proxy(settings.host)
    settings.no_proxy = None  # it has been looked at
    settings.connection_pool_maxsize = 32
    settings.retries = urllib3.Retry(connect=0, read=1, redirect=0, other=0)  # a kept connection may have been closed
    return Client(settings, rest.RESTClientObject(settings).pool_manager)


def proxy_url(config: dict, cluster: str) -> str:
    """Return the proxy that a kubeconfig names for a cluster, which the client does not read; empty for none."""
    found = (one["cluster"] for one in config["clusters"] if one["name"] == cluster)
    return str(next(found).value.get("proxy-url") or "")


def proxy(host: str) -> str | None:
    """Return the proxy that the environment names for a server: NO_PROXY counts, and HTTP_PROXY is not for https."""
    where = urlsplit(host)
    return None if proxy_bypass_environment(where.netloc) else getproxies_environment().get(where.scheme)
