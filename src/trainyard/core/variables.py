"""Numbers that users and the chart set as environment variables: their names, defaults and check, in one place."""

import math
import os
from collections.abc import Mapping

from trainyard.core.exits import UserError

STORAGE_SECONDS, GRACE_SECONDS = "TRAINYARD_STORAGE_SECONDS", "TRAINYARD_GRACE_SECONDS"
WAIT_SECONDS, MAX_RESTARTS = "TRAINYARD_WAIT_SECONDS", "PET_MAX_RESTARTS"
PEERS_WAIT, SPARES = "TRAINYARD_PEERS_WAIT", "TRAINYARD_SPARES"
DEFAULTS = {
    # A lost NFS or Gluster server is replaced in about a minute; and less than half of comm.hang_seconds
    STORAGE_SECONDS: 120.0,
    GRACE_SECONDS: 30.0,  # Kubernetes' own default
    WAIT_SECONDS: 600.0,
    MAX_RESTARTS: 0.0,
    PEERS_WAIT: 600.0,  # for which torchrun's nodes wait for each other
    SPARES: 0.0,
}
COUNTS = (MAX_RESTARTS, SPARES)


def read_number(name: str, environ: Mapping[str, str] = os.environ) -> float:
    """Return the number that a variable of DEFAULTS holds, its default where it is unset or empty; raises UserError."""
    text = environ.get(name, "").strip()
    if not text:
        return DEFAULTS[name]
    kind = "a whole number" if name in COUNTS else "a number of seconds"
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf or (name in COUNTS and not number.is_integer()):
        raise UserError(f"environment variable {name} is {text!r}: set {kind}, 0 or more, or remove it")
    return number


def check_numbers() -> None:
    """Raise UserError for a variable that holds no number, before any work is done."""
    for name in DEFAULTS:
        read_number(name)
