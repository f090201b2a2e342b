"""Check settings against their model. Each mistake gets a line that names its key, its value and the remedy."""

import difflib
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from trainyard.config.layers import Tree, whole_numbers
from trainyard.core.exits import UserError

REFUSED = "refused"  # kind of the errors that `refuse` raises
Model = TypeVar("Model", bound=BaseModel)


def refuse(*texts: str) -> NoReturn:
    """Refuse, from a validator, settings that are wrong together; each text names keys, values and the remedy."""
    raise PydanticCustomError(REFUSED, "{text}", {"text": "\n".join(texts)})


def validate(model: type[Model], tree: Tree, before: str = "") -> Model:
    """Return the settings as their model; raises UserError, whose message begins with `before`."""
    try:
        return model.model_validate(whole_numbers(tree))
    except ValidationError as error:
        raise UserError(before + describe(error, model)) from None


def describe(error: ValidationError, model: type[BaseModel]) -> str:
    """Return what is wrong with each key, and the remedy, a line per mistake."""
    lines: dict[tuple[int | str, ...], str] = {}
    for detail in error.errors():
        loc = _without_alternative(model, detail["loc"])
        if loc in lines:
            lines[loc] += f" or {detail['msg'].removeprefix('Input should be ')}"
        else:
            lines[loc] = _describe_one(model, loc, detail["type"], detail["msg"], detail["input"])
    return "\n".join(lines.values())


def _without_alternative(model: type[BaseModel], loc: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """Return where a key stands, without the last part that pydantic adds where a value may also be a certain word."""
    field = _fields_at(model, loc[:-2]).get(str(loc[-2])) if len(loc) > 1 else None
    has_words = field is not None and any(get_origin(one) is Literal for one in get_args(field.annotation))
    return loc[:-1] if has_words else loc


def _describe_one(model: type[BaseModel], loc: tuple[int | str, ...], kind: str, message: str, value: Any) -> str:
    key = ".".join(str(part) for part in loc)
    if kind == REFUSED:
        return message
    if kind == "missing":
        return f"{key}: {message}"
    fields = _fields_at(model, loc[:-1])
    # Values of fields with repr=False are not shown, nor text under a misspelt key beside one: addresses may be signed.
    meant = [str(loc[-1])] if str(loc[-1]) in fields else list(fields)
    open_ = isinstance(value, int | float) or all(fields[name].repr for name in meant)
    shown = f" = {value!r}" if open_ else ""
    if kind == "extra_forbidden":
        return f"{key}{shown}: unknown key; {_remedy(model, loc)}"
    return f"{key}{shown}: {message[0].lower()}{message[1:]}"


def _remedy(model: type[BaseModel], loc: tuple[int | str, ...]) -> str:
    known = list(_fields_at(model, loc[:-1]))
    close = difflib.get_close_matches(str(loc[-1]), known, n=1, cutoff=0.5)
    before = "".join(f"{part}." for part in loc[:-1])
    return f"did you mean {before}{close[0]}?" if close else f"remove it, or use one of {', '.join(known)}"


def _fields_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> dict[str, FieldInfo]:
    """Return the fields of a section, by the names that a file uses; none where `loc` leads to no section."""
    fields = {info.alias or name: info for name, info in model.model_fields.items()}
    if not loc:
        return fields
    inner = _section(fields.get(str(loc[0])))
    return _fields_at(inner, loc[1:]) if inner else {}


def _section(field: FieldInfo | None) -> type[BaseModel] | None:
    """Return the model of a section, also of one that may be left out (`Section | None`)."""
    annotation = field.annotation if field else None
    choices = [annotation, *getattr(annotation, "__args__", ())]
    return next((one for one in choices if isinstance(one, type) and issubclass(one, BaseModel)), None)
