"""Check settings against their model. Each mistake gets a line that names its key, its value and the remedy."""

import difflib
import re
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
    """Return the settings as their model; raises UserError, whose message begins with `before` and has all mistakes."""
    whole = whole_numbers(tree)
    try:
        return model.model_validate(whole)
    except ValidationError as error:
        texts = [describe(error, model), *_hidden(model, whole, error)]
        raise UserError(before + "\n".join(dict.fromkeys(texts))) from None


def _hidden(model: type[BaseModel], tree: Tree, error: ValidationError) -> list[str]:
    """Return what rules across keys say once the wrong values are replaced by their defaults.

    pydantic asks these rules only where each value is right by itself. What they say about a key that was wrong is left
    out: it is about the default.
    """
    found: list[str] = []
    wrong: set[str] = set()
    while places := [_without_alternative(model, detail["loc"]) for detail in error.errors() if detail["loc"]]:
        before = tree
        for loc in places:
            wrong |= {".".join(map(str, loc)), _nearest_key(model, loc)} - {""}
            tree = _without(tree, loc)
        if tree == before:
            break
        try:
            model.model_validate(tree)
            break
        except ValidationError as again:
            error = again
            refused = [detail["msg"].split("\n") for detail in error.errors() if detail["type"] == REFUSED]
            found += [text for texts in refused for text in texts]
    names = re.compile("|".join(rf"(?<![\w.]){re.escape(key)}\b" for key in sorted(wrong)) or "(?!)")
    return [text for text in found if not names.search(text)]


def _without(tree: Tree, loc: tuple[int | str, ...]) -> Tree:
    """Return the tree without the key at a place, or the nearest key above it that exists."""
    head, *rest = loc
    if head not in tree:
        return tree
    inner = tree[head]
    if rest and isinstance(inner, dict) and rest[0] in inner:
        return {**tree, str(head): _without(inner, tuple(rest))}
    return {key: value for key, value in tree.items() if key != head}


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
    near = _nearest_key(model, loc)
    known = _fields_at(model, loc[:-1])
    return f"did you mean {near}?" if near else f"remove it, or use one of {', '.join(known)}"


def _nearest_key(model: type[BaseModel], loc: tuple[int | str, ...]) -> str:
    """Return the known key that is written most like the one at this place, or nothing."""
    close = difflib.get_close_matches(str(loc[-1]), list(_fields_at(model, loc[:-1])), n=1, cutoff=0.5)
    return "".join(f"{part}." for part in loc[:-1]) + close[0] if close else ""


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
