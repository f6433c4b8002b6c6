"""What is written loads to the same; schema and differences."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from llmtrain.config import Config, diff, dump_config, json_schema, load_config
from tests.unit.config.support import MINIMAL, Loader

AWKWARD = [
    "no",
    "off",
    "yes",
    "1e-4",
    "007",
    "12:30",
    ".nan",
    "null",
    "~",
    "true",
    "3",
    "",
    " a",
    "a: b",
    "# c",
    "- d",
    "é\n",
    "{x}",
]

text = st.one_of(st.sampled_from(AWKWARD), st.text(st.characters(blacklist_categories=["Cs", "Cc"]), max_size=12))
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**18), 10**18), st.floats(allow_nan=False, allow_infinity=False), text
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3), max_leaves=8
)


def plain(value: str) -> bool:
    """Whether an open section may hold this text: what looks like a number that cannot be used is refused there."""
    return not any(sign in value.lower() for sign in (".nan", ".inf")) and not value.lstrip("+-").startswith("0")


@given(
    name=st.text("abcdefgh-_.0123", min_size=1, max_size=8).filter(lambda name: name.strip(".")),
    notes=text.filter(lambda value: value != "None"),
    tags=st.lists(text.filter(lambda value: value != "None"), max_size=3),
    rate=st.floats(min_value=1e-300, max_value=1e300),
    overrides=st.dictionaries(text.filter(lambda key: key != "<<"), values, max_size=3),
    packing=st.booleans(),
    sets=st.dictionaries(st.text("abc.-1", min_size=1, max_size=4), st.just([{"path": "org/x"}]), max_size=2),
)
@settings(
    max_examples=60,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_a_dump_loads_to_the_same_configuration(
    loader: Loader,
    name: str,
    notes: str,
    tags: list[str],
    rate: float,
    overrides: dict[str, Any],
    packing: bool,
    sets: dict[str, Any],
) -> None:
    base = loader.load().config.model_dump()
    base["run"]["name"] = name
    base["tracking"].update(notes=notes, tags=tags)
    base["optimizer"]["learning_rate"] = rate
    base["model"]["config_overrides"] = usable(overrides)
    base["data"]["packing"] = {"isolate_documents": True} if packing else False
    base["data"]["eval"] = sets or None
    config = Config.model_validate(base)
    Path("dumped.yaml").write_text(dump_config(config), encoding="utf-8")
    assert load_config([Path("dumped.yaml")]).config == config


def usable(value: Any) -> Any:
    """The value without text that an open section refuses."""
    if isinstance(value, dict):
        return {key: usable(item) for key, item in value.items() if key != "<<"}
    if isinstance(value, list):
        return [usable(item) for item in value]
    return value if not isinstance(value, str) or plain(value) else "x"


def test_other_readers_of_yaml_see_the_same(loader: Loader) -> None:
    config = loader.load("run.name='off'", "tracking.tags=[no, 12:30, '007', 1e5_]", "eval.eval_strategy=no").config
    assert yaml.safe_load(dump_config(config)) == config.model_dump()


def test_origins_stand_beside_the_values(loader: Loader) -> None:
    loaded = loader.load("run.seed=3")
    lines = dump_config(loaded.config, loaded.provenance.origin_of).splitlines()
    assert "  seed: 3  # command line" in lines
    assert "  learning_rate: 0.001  # run.yaml:10" in lines
    assert "  - path: json  # run.yaml:6" in lines
    assert "  save_steps: 500  # default" in lines
    Path("shown.yaml").write_text("\n".join(lines))
    assert load_config([Path("shown.yaml")]).config == loaded.config


def test_differences(loader: Loader) -> None:
    left = loader.load().config
    right = loader.load("optimizer.learning_rate=2e-3", "data.packing=false", "model.config_overrides.n_layer=2").config
    assert [str((found.path, found.left, found.right)) for found in diff(left, right)] == [
        "('model.config_overrides', {}, <absent>)",
        "('data.packing.isolate_documents', True, <absent>)",
        "('optimizer.learning_rate', 0.001, 0.002)",
        "('model.config_overrides.n_layer', <absent>, 2)",
        "('data.packing', <absent>, False)",
    ]
    assert diff(left, left) == []


def test_the_schema_describes_every_leaf_and_deepspeeds_keys() -> None:
    schema = json_schema()
    assert json.loads(json.dumps(schema)) == schema
    for section in schema["$defs"].values():
        assert section["additionalProperties"] is False
        assert all("description" in leaf for leaf in section["properties"].values())
    assert "required" not in schema
    block = schema["properties"]["deepspeed"]["anyOf"][1]
    zero = block["properties"]["zero_optimization"]
    assert zero["properties"]["stage"] == {"type": "integer", "enum": [0, 1, 2, 3]}
    assert "stage3_max_live_parameters" in zero["properties"]
    assert zero["additionalProperties"] is False
    assert "train_batch_size" not in block["properties"]
    assert "enabled" not in block["properties"]["fp16"]["properties"]


def test_minimal_is_minimal(loader: Loader) -> None:
    """Each line of the small configuration of these tests is needed."""
    for line in ("  preset: gpt2-124m\n", "  max_steps: 100\n", "  learning_rate: 1e-3\n", "  global_batch_size: 16\n"):
        assert len(loader.problems(text=MINIMAL.replace(line, ""))) == 1
