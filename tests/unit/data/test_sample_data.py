"""The sample data, and the commands that write it and train a tokenizer on it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from llmtrain.cli.data_commands import add_data_commands
from llmtrain.data import sample_data
from llmtrain.data.sample_data import is_held_out, write_sample_data


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    add_data_commands(parser.add_subparsers(required=True))
    parsed = parser.parse_args(arguments)
    return int(parsed.run(parsed))


def test_sample_data_is_real_text_with_a_held_out_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("sample-data", str(tmp_path)) == 0
    assert "train.jsonl: " in capsys.readouterr().out
    records = {
        name: [json.loads(line) for line in (tmp_path / name).read_text(encoding="utf-8").split("\n")[:-1]]
        for name in ("train.jsonl", "eval.jsonl")
    }
    names = {file: [record["name"] for record in lines] for file, lines in records.items()}
    assert "lib/json/decoder.py" in names["train.jsonl"] + names["eval.jsonl"]
    assert any(name.startswith("topics/") for name in names["eval.jsonl"])
    assert all(is_held_out(name) == (file == "eval.jsonl") for file, found in names.items() for name in found)
    assert len(set(names["train.jsonl"] + names["eval.jsonl"])) == sum(map(len, names.values())) > 500
    assert not any("/test/" in name or "site-packages" in name for name in names["train.jsonl"])
    assert sum(len(record["text"]) for record in records["train.jsonl"]) > 5_000_000
    assert 0.02 < len(names["eval.jsonl"]) / len(names["train.jsonl"]) < 0.1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["eval.jsonl", "train.jsonl"]

    again = write_sample_data(tmp_path / "again")
    assert [path.read_bytes() for path in again] == [(tmp_path / path.name).read_bytes() for path in again]


def test_sample_data_that_is_there_is_kept(tmp_path: Path) -> None:
    for name in (sample_data.TRAIN_FILE, sample_data.EVAL_FILE):
        (tmp_path / name).write_text("mine\n")
    write_sample_data(tmp_path)
    assert (tmp_path / sample_data.TRAIN_FILE).read_text() == "mine\n"


def test_tokenizer_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("some text\nand more\n" * 5)
    out = tmp_path / "tokenizer"
    arguments = ("--files", str(tmp_path / "a.txt"), "--out", str(out), "--vocab-size", "262", "--task", "masked_lm")
    assert run("tokenizer", "train", *arguments) == 0
    assert (out / "tokenizer.json").exists()
    assert "262 tokens" in capsys.readouterr().out
