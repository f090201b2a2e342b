"""The user's own code by name, as settings give it: `package.module:function`."""

import importlib
import operator
from typing import Any

from trainyard.core.exits import UserError


def current(name: str) -> str:
    """Return a name that begins with the package's former one, `trainers.`, under the one of today."""
    return name.replace("trainers.", "trainyard.", 1) if name.startswith("trainers.") else name


def import_object(key: str, name: str) -> Any:
    """Return what `package.module:function` names; raises UserError."""
    module, separator, function = name.partition(":")
    if not separator or not module or not function:
        raise UserError(f"{key}: must be `package.module:function`")
    try:
        return operator.attrgetter(function)(importlib.import_module(current(module)))
    except (ImportError, AttributeError) as error:
        raise UserError(f"{key}: cannot be imported ({error}); it must be on PYTHONPATH") from error
