"""What a value in a file or on the command line may be."""

from __future__ import annotations

import pytest

from llmtrain.config import parse_duration
from tests.unit.config.support import MINIMAL, Loader


@pytest.mark.parametrize(
    ("written", "number"),
    [
        ("1e-4", 1e-4),
        ("5e-5", 5e-5),
        ("'5e-5'", 5e-5),
        ('"0.1"', 0.1),
        (".5", 0.5),
        ("1.", 1.0),
        ("3", 3.0),
        ("1E-3", 1e-3),
    ],
)
def test_floats(loader: Loader, written: str, number: float) -> None:
    loaded = loader.load(text=MINIMAL.replace("1e-3", written))
    assert loaded.config.optimizer.learning_rate == number


@pytest.mark.parametrize(
    ("written", "number"),
    [("8", 8), ("'8'", 8), ("1e4", 10000), ("'1e4'", 10000), ("16.0", 16), ("0x10", 16), ("0o20", 16), ("+12", 12)],
)
def test_integers(loader: Loader, written: str, number: int) -> None:
    value = loader.load(text=MINIMAL.replace("max_steps: 100", f"max_steps: {written}")).config.schedule.max_steps
    assert value == number
    assert type(value) is int
    assert loader.load(f"schedule.max_steps={written}").config.schedule.max_steps == number


@pytest.mark.parametrize(
    ("written", "rule"),
    [
        ("012", "has a leading zero"),
        ("'012'", "has a leading zero"),
        ("00.5", "has a leading zero"),
        (".nan", "must be a finite number"),
        ("'.inf'", "must be a finite number"),
        ("-.INF", "must be a finite number"),
        ("nan", "must be a finite number"),
        ("1e999", "must be a finite number"),
        ("12:30", "must be a number"),
        ("None", "must be a number"),
        ("true", "must be a number, not a boolean"),
        ("'true'", "must be a number"),
        ("1_000", "must be a number"),
        ("' 8'", "must be a number without spaces"),
        ("[8]", "must be a number"),
        ("abc", "must be a number"),
    ],
)
@pytest.mark.parametrize("key", ["schedule.max_steps", "optimizer.weight_decay"])
def test_what_is_no_number(loader: Loader, key: str, written: str, rule: str) -> None:
    problem = loader.problem(f"{key}={written}")
    assert (problem.path, problem.rule, problem.origin) == (key, rule, "command line")


def test_the_remedy_shows_the_number_that_was_meant(loader: Loader) -> None:
    assert loader.problem("schedule.max_steps=0100").remedy == "write 100"
    assert loader.problem("schedule.max_steps=10_000").remedy == "write 10000"
    assert loader.problem("schedule.max_steps=None").remedy == "YAML's word for no value is null"


def test_integers_are_whole_and_exact(loader: Loader) -> None:
    assert loader.problem("schedule.max_steps=1.5").rule == "must be a whole number"
    assert loader.problem("schedule.max_tokens=1e23").rule == "is too large to be exact in this form"
    exact = loader.load("schedule.max_tokens=100000000000000000000001").config.schedule.max_tokens
    assert exact == 100000000000000000000001


@pytest.mark.parametrize("written", ["yes", "on", "1", "0", "'true'", '"false"', "None", "null"])
def test_only_true_and_false_are_booleans(loader: Loader, written: str) -> None:
    problem = loader.problem(f"run.overwrite={written}")
    assert (problem.path, problem.rule) == ("run.overwrite", "must be true or false")


def test_true_and_false(loader: Loader) -> None:
    assert loader.load("run.deterministic=true").config.run.deterministic is True
    assert loader.load("run.deterministic=false").config.run.deterministic is False


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("no", "no"),
        ("off", "off"),
        ("12:30", "12:30"),
        ("007", "007"),
        ("'3'", "3"),
        ("2024-01-01", "2024-01-01"),
        ("y", "y"),
    ],
)
def test_text_that_older_yaml_reads_otherwise(loader: Loader, written: str, text: str) -> None:
    assert loader.load(f"run.name={written}").config.run.name == text


@pytest.mark.parametrize("written", ["3", "1e-4", "true", "[a]", "{a: b}"])
def test_text_fields_take_text_alone(loader: Loader, written: str) -> None:
    assert loader.problem(f"tracking.project={written}").rule == "must be text"


def test_pythons_none_is_no_text(loader: Loader) -> None:
    assert loader.problem("tracking.notes=None").remedy == "write null, or leave the key out"


def test_open_sections_refuse_what_is_no_finite_number(loader: Loader) -> None:
    problems = loader.problems("model.config_overrides={rope_theta: .inf, a: {b: 010}, ok: 1e-5, name: x}")
    assert [problem.path for problem in problems] == ["model.config_overrides.rope_theta", "model.config_overrides.a.b"]


@pytest.mark.parametrize(
    ("written", "seconds"), [("90s", 90), ("30m", 1800), ("23h50m", 85800), ("1d2h", 93600), ("1d 30s", 86430)]
)
def test_durations(written: str, seconds: float) -> None:
    assert parse_duration(written) == seconds


@pytest.mark.parametrize("written", ["", "30", "m", "1h1d", "1.5h", "-3m", "0s", "12:30:00"])
def test_what_is_no_duration(loader: Loader, written: str) -> None:
    with pytest.raises(ValueError, match="is no duration"):
        parse_duration(written)
    assert loader.problem(f"run.time_limit='{written}'").path == "run.time_limit"
