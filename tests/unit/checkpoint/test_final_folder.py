"""What is exported from an engine is what transformers itself would save, and loads strictly."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from llmtrain.checkpoint.agreement import OneRank
from llmtrain.checkpoint.disk import Disk
from llmtrain.checkpoint.final import export_final
from llmtrain.checkpoint.model_files import ModelFiles
from llmtrain.errors import CheckpointError
from tests.support.tiny_models import tiny_tokenizer
from tests.unit.checkpoint.models import tiny_model

NO_PROBLEM: dict[str, Any] = {"missing_keys": set(), "unexpected_keys": set(), "mismatched_keys": set()}


def _engine(model: Any) -> Any:
    return SimpleNamespace(deepspeed=SimpleNamespace(module=model))


def _load(folder: Path, architecture: str) -> Any:
    auto = AutoModelForMaskedLM if architecture == "bert" else AutoModelForCausalLM
    model, info = auto.from_pretrained(folder, output_loading_info=True)
    assert {key: info[key] for key in NO_PROBLEM} == NO_PROBLEM
    return model


@pytest.mark.parametrize("architecture", ["gpt2", "bert", "llama", "mixtral"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_export_loads_strictly_with_equal_weights(architecture: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = tiny_model(architecture).to(dtype)
    files = ModelFiles.of(model, tiny_tokenizer(), dtype)
    export_final(_engine(model), files, tmp_path / "final", OneRank())
    loaded = _load(tmp_path / "final", architecture)
    assert loaded.dtype == dtype
    assert loaded.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in loaded.state_dict().items())
    assert (tmp_path / "final" / "tokenizer.json").is_file()
    assert (tmp_path / "final" / "generation_config.json").is_file() == (architecture != "bert")
    assert not (tmp_path / "final.tmp").exists()


@pytest.mark.parametrize("architecture", ["gpt2", "bert", "llama"])
def test_an_export_is_what_transformers_saves(architecture: str, tmp_path: Path) -> None:
    model = tiny_model(architecture)
    export_final(_engine(model), ModelFiles.of(model, None, torch.float32), tmp_path / "ours", OneRank())
    model.save_pretrained(tmp_path / "theirs")
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("ours", "theirs"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("ours", "theirs")]
    assert configs[0] == configs[1]


def test_large_models_are_split_into_shards(tmp_path: Path) -> None:
    model = tiny_model("gpt2")
    files = ModelFiles.of(model, None, torch.float32)
    export_final(_engine(model), files, tmp_path / "final", OneRank(), max_shard_bytes=20_000)
    shards = sorted(path.name for path in (tmp_path / "final").glob("*.safetensors"))
    assert len(shards) > 2
    assert shards[0] == f"model-00001-of-{len(shards):05d}.safetensors"
    assert all((tmp_path / "final" / name).stat().st_size < 22_000 for name in shards)
    loaded = _load(tmp_path / "final", "gpt2")
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in loaded.state_dict().items())


def test_an_export_replaces_an_older_one_whole(tmp_path: Path) -> None:
    model = tiny_model("gpt2")
    files = ModelFiles.of(model, None, torch.float32)
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "left_over.txt").write_text("old")
    export_final(_engine(model), files, tmp_path / "final", OneRank())
    assert not (tmp_path / "final" / "left_over.txt").exists()


def test_an_export_that_fails_leaves_the_older_one(tmp_path: Path) -> None:
    class FullDisk(Disk):
        def before(self, operation: str, path: Path) -> None:
            if operation == "write" and path.name == "model.safetensors":
                raise OSError(28, "No space left on device")

    model = tiny_model("gpt2")
    files = ModelFiles.of(model, None, torch.float32)
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "kept.txt").write_text("old")
    with pytest.raises(CheckpointError, match="could not be exported to .*No space left"):
        export_final(_engine(model), files, tmp_path / "final", OneRank(), disk=FullDisk())
    assert (tmp_path / "final" / "kept.txt").read_text() == "old"
