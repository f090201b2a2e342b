"""What all sections of the settings share."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(gt=0)]
Natural = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Triple = Annotated[list[float], Field(min_length=3, max_length=3)]
Range = Annotated[list[Annotated[float, Field(gt=0.0)]], Field(min_length=2, max_length=2)]


class Settings(BaseModel):
    """Base of every section: closed, frozen, strict, no NaN."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, populate_by_name=True)
