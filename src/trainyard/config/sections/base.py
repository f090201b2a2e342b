"""The base of all sections of the settings."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[int, Field(gt=0)]
Natural = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Triple = Annotated[list[float], Field(min_length=3, max_length=3)]
Range = Annotated[list[Annotated[float, Field(gt=0.0)]], Field(min_length=2, max_length=2)]
NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


class Settings(BaseModel):
    """Base of every section: closed, frozen, strict, no NaN. A number may be text, as Helm's --set writes 0.1."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def read_numbers(cls, tree: Any) -> Any:
        """Turn text into the number that it shows, for the keys that hold numbers."""
        if not isinstance(tree, dict):
            return tree
        kinds = {info.alias or name: set(_kinds(info.annotation)) for name, info in cls.model_fields.items()}
        numeric = {name for name, found in kinds.items() if found & {int, float} and str not in found}
        return {key: _number(value) if key in numeric else value for key, value in tree.items()}


def _kinds(annotation: Any) -> Iterator[Any]:
    """Yield the types that an annotation is made of."""
    inner = get_args(annotation)
    if not inner:
        yield annotation
    for one in inner:
        yield from _kinds(one)


def _number(value: Any) -> Any:
    if isinstance(value, list):
        return [_number(one) for one in value]
    if not isinstance(value, str) or not NUMBER.fullmatch(value):
        return value
    return int(value) if value.lstrip("+-").isdigit() else float(value)
