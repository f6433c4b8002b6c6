"""`--dry-run`: what a run would do, without a launcher, without ranks and without weights.

It goes the way of `construction.py` as far as that needs no process group, and shows what it finds: the configuration
with the origin of every value, the batch plan, DeepSpeed's dictionary, the model's size, the first sequences. What is
named by its hub name and cannot be reached is said so, and the rest goes on with what is known.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import torch

from llmtrain.batching import BatchPlan, plan_batches
from llmtrain.config import LoadedConfig, dump_config
from llmtrain.config.schema import Config
from llmtrain.data.loader import TrainLoader
from llmtrain.data.tokenizer import load_tokenizer
from llmtrain.engine import deepspeed_config, deepspeed_notes
from llmtrain.errors import HubUnreachableError
from llmtrain.models import model_facts, resolve_model_config
from llmtrain.progress import total_steps
from llmtrain.tasks import build_task
from llmtrain.tasks.base import IGNORE_INDEX, PADDING_DOCUMENT
from llmtrain.tracking import tracking_problems

NUM_SEQUENCES = 2
NUM_TOKENS = 48
"""Of each end of a sequence, so that its boundaries and its padding show."""


def describe(loaded: LoadedConfig, world_size: int) -> Iterator[str]:
    """The lines to print.

    Raises:
        ConfigError: what would end the run at its start.
    """
    config = loaded.config
    yield "# configuration, with the origin of every value"
    yield dump_config(config, loaded.provenance.origin_of)
    for text in (*loaded.notes, *deepspeed_notes(config), *(str(p) for p in tracking_problems(config.tracking))):
        yield f"note: {text}"
    plan = plan_batches(config.batch, world_size, config.data.num_lanes)
    yield from _describe_plan(config, plan)
    yield "# what DeepSpeed is given"
    yield json.dumps(deepspeed_config(config, plan, "cuda" if torch.cuda.is_available() else "cpu"), indent=2)
    tokenizer = None
    try:
        tokenizer = load_tokenizer(config)
    except HubUnreachableError as error:
        yield f"# the tokenizer is not known: {error}"
    yield from _describe_model(config, tokenizer)
    if tokenizer is not None:
        yield from _describe_data(config, plan, tokenizer)


def _describe_plan(config: Config, plan: BatchPlan) -> Iterator[str]:
    yield "# batch plan"
    yield (
        f"{plan.global_batch_size} sequences a step = micro-batch {plan.micro_batch_size} x accumulation "
        f"{plan.gradient_accumulation_steps} x {plan.world_size} ranks; {plan.num_lanes} lanes"
    )
    tokens = plan.global_batch_size * config.data.seq_length
    steps = total_steps(config.schedule, plan.global_batch_size, config.data.seq_length)
    length = f"{steps:,} steps, {steps * tokens:,} tokens" if steps else f"{config.schedule.num_train_epochs} epochs"
    yield f"{tokens:,} tokens a step; the run is at most {length}"


def _describe_model(config: Config, tokenizer: Any) -> Iterator[str]:
    try:
        model_config = resolve_model_config(config, tokenizer)
    except HubUnreachableError as error:
        yield f"# the model is not known: {error}"
        return
    facts = model_facts(config, model_config)
    yield "# model"
    yield f"{model_config.model_type}, vocabulary {model_config.vocab_size:,} rows" + (
        "" if tokenizer is not None else " (as published: the tokenizer is not known)"
    )
    yield f"{facts.num_parameters:,} parameters, {facts.num_parameters_non_embedding:,} without embeddings and head"
    yield f"{facts.flops_per_token:,} FLOPs a token, forward and backward, at {config.data.seq_length} tokens"


def _describe_data(config: Config, plan: BatchPlan, tokenizer: Any) -> Iterator[str]:
    task = build_task(config, tokenizer)
    try:
        loader = TrainLoader(config, tokenizer, task, plan, 0)
    except HubUnreachableError as error:
        yield f"# the data is not known: {error}"
        return
    try:
        step = loader.next_step()
    finally:
        loader.close()
    yield f"# the first sequences of rank 0 ({step.num_supervised_tokens:,} supervised tokens in its first step)"
    batch = step.micro_batches[0]
    for row in range(min(NUM_SEQUENCES, len(batch["input_ids"]))):
        yield from _describe_sequence(row, {name: tensor[row] for name, tensor in batch.items()}, tokenizer)


def _describe_sequence(index: int, row: dict[str, torch.Tensor], tokenizer: Any) -> Iterator[str]:
    documents = row["document_ids"]
    length = int((documents != PADDING_DOCUMENT).sum())
    starts = [0, *(int(i) + 1 for i in (documents[1:length] != documents[: length - 1]).nonzero())] if length else []
    supervised = int((row["labels"] != IGNORE_INDEX).sum())
    yield (
        f"sequence {index}: {length} tokens of {len(starts)} documents starting at {starts}, "
        f"{len(documents) - length} of padding, {supervised} supervised"
    )
    shown = [position for position in range(length) if not NUM_TOKENS <= position < length - NUM_TOKENS]
    yield "  position  document  token                 label"
    for previous, position in zip([-1, *shown], shown, strict=False):
        if position != previous + 1:
            yield "  ..."
        token, label = int(row["input_ids"][position]), int(row["labels"][position])
        shown_label = "-" if label == IGNORE_INDEX else _token(tokenizer, label)
        yield f"  {position:8d}  {int(documents[position]):8d}  {_token(tokenizer, token):20s}  {shown_label}"


def _token(tokenizer: Any, token_id: int) -> str:
    return repr(tokenizer.decode([token_id]))
