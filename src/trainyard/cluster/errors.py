"""Errors between a command and the cluster."""


class KubeError(Exception):
    """The API server refused, or there is none; the message says which, with what to do."""


class UnreachableError(KubeError):
    """The API server gave no answer."""


class RefusedError(KubeError):
    """The API server answered with an error; `status` is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
