"""Scalar types of the schema, with llmtrain's rules for what a YAML or command-line value may be.

`Int` and `Float` accept numbers and quoted numbers (`"8"`, `"1e-4"`, `1e4` for an integer), and refuse booleans, NaN,
infinities and leading zeros. `Bool` accepts `true` and `false` alone. `Str` accepts strings alone.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field


def _to_bool(value: object) -> object:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


Int = int
Float = float
Str = str
Bool = Annotated[bool, BeforeValidator(_to_bool)]
PositiveInt = Annotated[Int, Field(ge=1)]
NonNegativeInt = Annotated[Int, Field(ge=0)]
PositiveFloat = Annotated[Float, Field(gt=0)]
NonNegativeFloat = Annotated[Float, Field(ge=0)]
Fraction = Annotated[Float, Field(ge=0, le=1)]
