"""Small things that the data tests share: a tokenizer of bytes, a task that changes nothing, sources on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from llmtrain.batching import BatchPlan
from llmtrain.config.schema import Config
from llmtrain.data.loader import RankStep, TrainLoader
from llmtrain.data.packing import Sequence as PackedSequence

EOS = 0


def byte_tokenizer(**special_tokens: str) -> Any:
    """One token a byte, 1 to 256, and 0 for the end of a text."""
    vocabulary = {"<|end|>": EOS}
    for index, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()), 1):
        vocabulary[character] = index
    for token in special_tokens.values():
        vocabulary.setdefault(token, len(vocabulary))
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, **{"eos_token": "<|end|>", **special_tokens})


@dataclass(frozen=True)
class PlainExample:
    """The sequence itself; every token counts."""

    sequence: PackedSequence

    @property
    def num_supervised_tokens(self) -> int:
        """All of them."""
        return len(self.sequence.input_ids)


class PlainTask:
    """Batches are lists of sequences, None for padding."""

    def encode(self, sequence: PackedSequence) -> PlainExample:
        """As it is."""
        return PlainExample(sequence)

    def collate(self, examples: Sequence[PlainExample | None]) -> Any:
        """As they are."""
        return {"sequences": [None if example is None else example.sequence for example in examples]}


def make_config(train: Sequence[Mapping[str, Any]], *, task: str = "causal_lm", seed: int = 42, **data: Any) -> Config:
    """A configuration with these sources and these keys of `data`."""
    data.setdefault("seq_length", 16)
    return Config.model_validate(
        {
            "run": {"seed": seed},
            "model": {"task": task, "architecture": "gpt2"},
            "data": {"train": list(train), **data},
            "batch": {"global_batch_size": 4},
            "optimizer": {"learning_rate": 1e-3},
            "schedule": {"lr_scheduler_type": "constant", "max_steps": 10},
        }
    )


def write_json_lines(path: Path, texts: Sequence[Any], **columns: Any) -> dict[str, Any]:
    """A file of records with these texts; its source."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"text": text, **columns}, ensure_ascii=False) + "\n" for text in texts]
    path.write_text("".join(lines), encoding="utf-8", newline="")
    return {"path": "json", "data_files": str(path)}


def json_source(*paths: Path) -> dict[str, Any]:
    """A source of JSON Lines files."""
    return {"path": "json", "data_files": [str(path) for path in paths]}


class Ranks:
    """All ranks of a run in one process, without training: takes steps, stops, and goes on with another number."""

    def __init__(self, config: Config, plan: BatchPlan, state: Mapping[str, Any] | None = None) -> None:
        tokenizer = byte_tokenizer()
        self.plan = plan
        self.loaders = [
            TrainLoader(config, tokenizer, PlainTask(), plan, rank, state=state) for rank in range(plan.world_size)
        ]

    def step(self) -> list[RankStep]:
        """The next step of every rank."""
        return [loader.next_step() for loader in self.loaders]

    def global_batch(self, steps: Sequence[RankStep]) -> list[PackedSequence | None]:
        """The sequences of a step in the order of the global batch."""
        batch: list[PackedSequence | None] = [None] * self.plan.global_batch_size
        for rank, step in enumerate(steps):
            for indices, micro_batch in zip(self.plan.micro_batches_of(rank), step.micro_batches, strict=True):
                sequences: Any = micro_batch["sequences"]
                for index, sequence in zip(indices, sequences, strict=True):
                    batch[index] = sequence
        return batch

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds, as JSON gives it back."""
        lanes = {lane: state for loader in self.loaders for lane, state in loader.lane_states.items()}
        saved = {"lanes": lanes, "fingerprint": self.loaders[0].fingerprint, "num_lanes": self.plan.num_lanes}
        loaded: dict[str, Any] = json.loads(json.dumps(saved))
        return loaded

    def start_epoch(self, epoch: int) -> None:
        """As the trainer does it."""
        for loader in self.loaders:
            loader.start_epoch(epoch)

    def close(self) -> None:
        """End their threads."""
        for loader in self.loaders:
            loader.close()
