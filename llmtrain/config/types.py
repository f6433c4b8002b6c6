"""Scalar types of the schema, with llmtrain's rules for what a YAML or command-line value may be.

`Int` and `Float` accept numbers and quoted numbers (`"8"`, `"1e-4"`, `1e4` for an integer), and refuse booleans, NaN,
infinities and leading zeros. `Bool` accepts `true` and `false` alone. `Str` accepts strings alone. What a number looks
like is YAML 1.2's core schema without those exceptions; `yaml_loader` reads files by the same functions.
"""

from __future__ import annotations

import math
import re
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, Discriminator, Field
from pydantic_core import PydanticCustomError

INTEGER_PATTERN = r"[-+]?(?:0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+"
FLOAT_PATTERN = r"[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
LARGEST_EXACT_FLOAT = 2**53
"""Above it a float no longer tells one integer from the next."""


def parse_number(text: str) -> int | float | None:
    """The number that `text` is, None where it is none (leading zeros, NaN and infinities are none)."""
    if len(text) > 400:
        return None
    if re.fullmatch(INTEGER_PATTERN, text):
        return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
    if re.fullmatch(FLOAT_PATTERN, text):
        number = float(text)
        return number if math.isfinite(number) else None
    return None


def value_error(rule: str, remedy: str = "") -> PydanticCustomError:
    """An error whose text reads on from the value, as a `Problem` wants it."""
    return PydanticCustomError("llmtrain", "{rule}", {"rule": rule, "remedy": remedy})


def to_number(value: object) -> int | float:
    """A number or a quoted number; raises `PydanticCustomError` for anything else."""
    if isinstance(value, bool):
        raise value_error("must be a number, not a boolean")
    number = parse_number(value) if isinstance(value, str) else value
    if not isinstance(number, int | float):
        raise value_error(*_why_not_a_number(value))
    if not math.isfinite(number):
        raise value_error("must be a finite number")
    return number


def _why_not_a_number(value: object) -> tuple[str, str]:
    if value is None:
        return "must be a number", "remove the key to take its default"
    if not isinstance(value, str):
        return "must be a number", ""
    if re.fullmatch(r"[-+]?0[0-9]+(\.[0-9]*)?([eE][-+]?[0-9]+)?", value):
        return "has a leading zero", f"write {value.lstrip('+-0') or '0'}"
    if re.fullmatch(r"[-+]?\.?(nan|inf|infinity)", value.lower()) or re.fullmatch(FLOAT_PATTERN, value):
        return "must be a finite number", ""
    if value == "None":
        return "must be a number", "YAML's word for no value is null"
    if re.fullmatch(r"[-+]?[0-9][0-9_,]*(\.[0-9]*)?", value):
        return "must be a number", f"write {re.sub('[_,]', '', value)}"
    if value != value.strip() and parse_number(value.strip()) is not None:
        return "must be a number without spaces", ""
    return "must be a number", ""


def _to_int(value: object) -> int:
    number = to_number(value)
    if isinstance(number, int):
        return number
    if not number.is_integer():
        raise value_error("must be a whole number")
    if abs(number) > LARGEST_EXACT_FLOAT:
        raise value_error("is too large to be exact in this form", "write all its digits")
    return int(number)


def _to_float(value: object) -> float:
    return float(to_number(value))


def _to_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    remedy = "true and false are written without quotes" if str(value).lower() in ("true", "false") else ""
    if str(value).lower() in ("yes", "no", "on", "off"):
        remedy = f"YAML 1.2 reads {value} as text"
    raise value_error("must be true or false", remedy)


def _to_str(value: object) -> str:
    if not isinstance(value, str):
        raise value_error("must be text", "put it in quotes" if isinstance(value, bool | int | float) else "")
    if value == "None":
        raise value_error("is Python's word for no value", "write null, or leave the key out")
    return value


def by_shape(expected: str) -> Discriminator:
    """For a union of forms tagged `<map>`, `<list>` and `<scalar>`: errors speak of the form that the value has."""
    return Discriminator(_shape, custom_error_type="llmtrain", custom_error_message=f"must be {expected}")


def _shape(value: object) -> str:
    if isinstance(value, dict | BaseModel):
        return "<map>"
    return "<list>" if isinstance(value, list | tuple) else "<scalar>"


Int = Annotated[int, BeforeValidator(_to_int)]
Float = Annotated[float, BeforeValidator(_to_float)]
Str = Annotated[str, BeforeValidator(_to_str)]
Bool = Annotated[bool, BeforeValidator(_to_bool)]
PositiveInt = Annotated[Int, Field(ge=1)]
NonNegativeInt = Annotated[Int, Field(ge=0)]
PositiveFloat = Annotated[Float, Field(gt=0)]
NonNegativeFloat = Annotated[Float, Field(ge=0)]
Fraction = Annotated[Float, Field(ge=0, le=1)]
