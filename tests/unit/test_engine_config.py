"""DeepSpeed's dictionary against golden files; a change of them is a change of what every run does.

`UPDATE_GOLDEN=1 pytest tests/unit/test_engine_config.py` writes them anew.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from llmtrain.batching import plan_batches
from llmtrain.config.schema import Config
from llmtrain.engine import deepspeed_config, deepspeed_notes
from llmtrain.errors import ConfigError

GOLDEN = Path(__file__).parent / "golden" / "engine"

OFFLOAD = {"offload_optimizer": {"device": "cpu", "pin_memory": True}}
CASES: dict[str, dict[str, Any]] = {
    "fp32_zero0": {"precision": "fp32"},
    "bf16_zero0_runs_as_zero1": {"precision": "bf16"},
    "bf16_zero2_accumulates_in_fp32": {"precision": "bf16", "deepspeed": {"zero_optimization": {"stage": 2}}},
    "bf16_zero3_offload": {
        "precision": "bf16",
        "deepspeed": {
            "zero_optimization": {
                "stage": 3,
                **OFFLOAD,
                "offload_param": {"device": "nvme", "nvme_path": "/local_nvme"},
                "stage3_max_live_parameters": 1000000,
            },
            "aio": {"thread_count": 4},
            "wall_clock_breakdown": True,
        },
    },
    "bf16_user_accumulates_in_bf16": {
        "precision": "bf16",
        "deepspeed": {
            "zero_optimization": {"stage": 2},
            "data_types": {"grad_accum_dtype": "bf16"},
            "bf16": {"immediate_grad_update": True},
        },
    },
    "fp16_zero2_loss_scale": {
        "precision": "fp16",
        "deepspeed": {"zero_optimization": {"stage": 2}, "fp16": {"initial_scale_power": 12}},
    },
    "no_clipping": {"precision": "fp32", "optimizer": {"learning_rate": 1e-3, "max_grad_norm": 0}},
    "muon_zero3": {
        "precision": "bf16",
        "optimizer": {"name": "muon", "learning_rate": 1e-3, "max_grad_norm": 0},
        "deepspeed": {"zero_optimization": {"stage": 3}},
    },
}


def make_config(**sections: Any) -> Config:
    return Config.model_validate(
        {
            "model": {"architecture": "gpt2"},
            "data": {"train": [{"path": "json", "data_files": "none"}]},
            "batch": {"global_batch_size": 64, "gradient_accumulation_steps": 4},
            "optimizer": {"learning_rate": 1e-3},
            "schedule": {"max_steps": 10},
            **sections,
        }
    )


def make_ds_config(config: Config, device_type: str = "cuda") -> dict[str, Any]:
    return deepspeed_config(config, plan_batches(config.batch, 2, None), device_type)


@pytest.mark.parametrize("name", CASES)
def test_the_dictionary_is_the_golden_one(name: str) -> None:
    config = make_config(**CASES[name])
    made = {"deepspeed": make_ds_config(config), "notes": deepspeed_notes(config)}
    path = GOLDEN / f"{name}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(made, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    assert made == json.loads(path.read_text(encoding="utf-8"))


def test_there_is_no_golden_file_without_a_case() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_deepspeed_accepts_the_dictionary(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from deepspeed.runtime.config import DeepSpeedConfig

    monkeypatch.setattr("deepspeed.comm.get_world_size", lambda *_: 2)
    monkeypatch.setattr("deepspeed.comm.get_rank", lambda *_: 0)
    ds_config = make_ds_config(make_config(**CASES[name]))
    parsed = DeepSpeedConfig(ds_config, mesh_device=None)
    assert parsed.train_batch_size == 64
    assert parsed.gradient_accumulation_steps == 4
    assert parsed.gradient_clipping == ds_config["gradient_clipping"]
    assert "auto" not in json.dumps(ds_config)


def test_the_configuration_is_not_changed_by_it() -> None:
    config = make_config(precision="bf16", deepspeed={"zero_optimization": {"stage": 2}})
    before = config.model_dump_json()
    ds_config = make_ds_config(config)
    ds_config["zero_optimization"]["stage"] = 3
    assert config.model_dump_json() == before


MUON = {"name": "muon", "learning_rate": 1e-3}


@pytest.mark.parametrize(
    ("sections", "device_type", "message"),
    [
        ({"precision": "fp16"}, "cpu", "precision='fp16' is not supported on CPU; use bf16 or fp32"),
        (
            {"precision": "bf16", "deepspeed": {"bf16": {"check_grad_overflow": False}}},
            "cuda",
            "deepspeed.bf16.check_grad_overflow=False would let a gradient that is not finite into the weights",
        ),
        (
            {"precision": "bf16", "optimizer": MUON, "deepspeed": {"zero_optimization": {"stage": 2}}},
            "cuda",
            "optimizer.max_grad_norm=1.0 cannot be had with optimizer.name=muon in bf16 at ZeRO stage 2",
        ),
        (
            {"precision": "bf16", "optimizer": MUON, "deepspeed": {"zero_optimization": {"stage": 1, **OFFLOAD}}},
            "cuda",
            "at ZeRO stage 1 with offload_optimizer: DeepSpeed would clip Muon's update",
        ),
        (
            {"optimizer": MUON, "deepspeed": {"zero_optimization": {"reduce_scatter": True}}},
            "cuda",
            "deepspeed.zero_optimization.reduce_scatter=True cannot be had with optimizer.name=muon",
        ),
        (
            {
                "optimizer": {**MUON, "max_grad_norm": 0},
                "deepspeed": {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}},
            },
            "cuda",
            "offload_optimizer.ratio=0.5 below 1 cannot be had with optimizer.name=muon",
        ),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(
    sections: dict[str, Any], device_type: str, message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        make_ds_config(make_config(**sections), device_type)
    assert message in str(error.value)


def test_all_problems_are_told_at_once() -> None:
    config = make_config(
        precision="fp16", optimizer=MUON, deepspeed={"zero_optimization": {"stage": 2, "reduce_scatter": True}}
    )
    with pytest.raises(ConfigError) as error:
        make_ds_config(config, "cpu")
    assert {problem.path for problem in error.value.problems} == {
        "precision",
        "optimizer.max_grad_norm",
        "deepspeed.zero_optimization.reduce_scatter",
    }


@pytest.mark.parametrize(("precision", "stage"), [("fp32", 0), ("bf16", 0), ("bf16", 1)])
def test_muon_clips_where_deepspeed_clips_the_gradient(precision: str, stage: int) -> None:
    config = make_config(precision=precision, optimizer=MUON, deepspeed={"zero_optimization": {"stage": stage}})
    assert make_ds_config(config)["gradient_clipping"] == 1.0
    assert not any("Muon" in note for note in deepspeed_notes(config))
