"""Rules between keys: what is refused, and that what is next to it is not."""

from __future__ import annotations

import re

import pytest

from tests.unit.config.support import Loader

EVAL = "data.eval=[{path: json, data_files: eval.jsonl}]"

REFUSED = [
    ("run.name=a/b", "run.name", "cannot be the name of a folder"),
    ("run.name=..", "run.name", "cannot be the name of a folder"),
    ("run.overwrite=true run.resume_from_checkpoint=auto", "run.overwrite", "would delete"),
    ("run.time_limit=2hours", "run.time_limit", "is no duration"),
    ("model.preset=null", "model", "needs one of preset"),
    ("model.architecture=gpt2", "model.architecture", "cannot be set beside model.preset"),
    ("model.init=pretrained", "model.init", "needs model.name_or_path"),
    ("model.preset=null model.name_or_path=org/m model.init_from=ckpt", "model.init_from", "both say where"),
    ("tokenizer.name_or_path=null", "tokenizer.name_or_path", "is required where model.name_or_path is not set"),
    ("data.train.0.data_files=null", "data.train[0].data_files", "is required with path: json"),
    ("data.train.0.data_files=[]", "data.train[0].data_files", "is required with path: json"),
    ("data.train.0.revision=main", "data.train[0].revision", "has no meaning with path: json"),
    ("data.train.0.path=jsonl", "data.train[0].path", "is no format of files"),
    ("data.train.0.path=parqet", "data.train[0].path", "is no format of files"),
    ("data.eval=[{path: text}]", "data.eval[0].data_files", "is required with path: text"),
    ("data.eval={a: [{path: csv}]}", "data.eval.a[0].data_files", "is required with path: csv"),
    ("data.eval=[]", "data.eval", "holds no source"),
    ("data.eval={a: []}", "data.eval.a", "holds no source"),
    ("data.eval={}", "data.eval", "names no set"),
    ("data.eval={'a/b': [{path: org/x}]}", "data.eval", "has a set named 'a/b'"),
    ("data.train.0.template='{title'", "data.train[0].template", "has unpaired braces"),
    ("data.train.0.template=title", "data.train[0].template", "names no column"),
    ("data.train.0.template='{}'", "data.train[0].template", "has braces without the name"),
    ("data.train.0.template='{a:>3}'", "data.train[0].template", "holds a format"),
    ("data.train.0.template='{a}' data.train.0.text_column=b", "data.train[0].text_column", "cannot be set beside"),
    ("data.train.0.weight=1 data.train.1.path=org/x", "data.train", "has weights for some sources only"),
    ("data.train.0.weight=1 schedule.max_steps=null schedule.num_train_epochs=1 schedule.lr_scheduler_type=constant",
     "data.train", "has weights, which need schedule.max_steps"),
    ("data.eval=[{path: org/x,weight: 2}]", "data.eval[0].weight", "has no meaning"),
    ("schedule.max_steps=null", "schedule", "needs one of max_steps, num_train_epochs and max_tokens"),
    ("schedule.max_steps=null schedule.num_train_epochs=2", "schedule.lr_scheduler_type",
     "needs to know where the run ends"),
    ("schedule.max_steps=null schedule.num_train_epochs=2 schedule.lr_scheduler_type=constant schedule.warmup_steps=.1",
     "schedule.warmup_steps", "is a share of a run whose length"),
    ("schedule.warmup_steps=1.5", "schedule.warmup_steps", "is neither a whole number of steps nor a share"),
    ("schedule.warmup_steps=101", "schedule.max_steps", "is shorter than schedule.warmup_steps=101"),
    ("schedule.lr_scheduler_type=warmup_stable_decay schedule.warmup_steps=60 schedule.decay_steps=0.5",
     "schedule.max_steps", "is shorter than schedule.warmup_steps=60 + schedule.decay_steps=0.5"),
    ("eval.eval_steps=10", "eval.eval_steps", "needs held-out data"),
    ("eval.eval_strategy=epoch", "eval.eval_strategy", "needs held-out data"),
    (f"{EVAL} eval.eval_strategy=steps", "eval.eval_steps", "is required with eval.eval_strategy=steps"),
    (f"{EVAL} eval.early_stopping_patience=3", "eval.early_stopping_patience", "needs evaluations"),
    ("eval.metric_for_best_model=eval_loss", "eval.metric_for_best_model", "needs evaluations"),
    (f"{EVAL} eval.eval_steps=5 eval.metric_for_best_model=eval_los", "eval.metric_for_best_model", "is no metric"),
    ("data.eval={w: [{path: org/x}]} eval.eval_steps=5 eval.metric_for_best_model=eval_wiki_loss",
     "eval.metric_for_best_model", "is no metric"),
    ("data.eval={w: [{path: org/x}]} eval.eval_steps=5 eval.metric_for_best_model=eval_loss",
     "eval.metric_for_best_model", "is no metric"),
    ("data.eval={w: [{path: org/x}]} eval.eval_steps=5 eval.early_stopping_patience=2",
     "eval.metric_for_best_model", "is required to stop early"),
    ("batch.global_batch_size=null", "batch", "needs global_batch_size or per_device_train_batch_size"),
    ("batch.per_device_train_batch_size=5", "batch.global_batch_size",
     "is not a multiple of per_device_train_batch_size 5"),
    ("batch.per_device_train_batch_size=4 batch.gradient_accumulation_steps=3", "batch.global_batch_size",
     "is not a multiple of per_device_train_batch_size 4 x gradient_accumulation_steps 3 = 12"),
    ("batch.gradient_accumulation_steps=3", "batch.global_batch_size",
     "is not a multiple of gradient_accumulation_steps 3"),
    ("run.expected_world_size=3", "batch.global_batch_size", "is not a multiple of world size 3"),
    ("batch.per_device_train_batch_size=4 batch.gradient_accumulation_steps=4 run.expected_world_size=2",
     "batch.global_batch_size",
     "is not per_device_train_batch_size 4 x gradient_accumulation_steps 4 x world size 2 = 32"),
    ("data.num_lanes=6", "data.num_lanes", "does not divide batch.global_batch_size=16"),
    ("data.num_lanes=2 run.expected_world_size=4", "data.num_lanes",
     "is not a multiple of run.expected_world_size=4"),
    ("tracking.report_to=[wandb,wandb]", "tracking.report_to", "names wandb more than once"),
]  # fmt: skip


def words(line: str) -> list[str]:
    """The overrides of a line: a blank before `key.sub=` divides them."""
    return re.split(r" (?=[a-z]+\.[a-z_0-9.]+=)", line)


@pytest.mark.parametrize(("line", "path", "rule"), REFUSED, ids=[line for line, _, _ in REFUSED])
def test_refused(loader: Loader, line: str, path: str, rule: str) -> None:
    problem = loader.problem(*words(line))
    assert problem.path == path
    assert rule in problem.rule


ALLOWED = [
    "run.name=a.b-c_3 run.time_limit=1d12h",
    "run.resume_from_checkpoint=auto",
    "model.init=scratch",
    "model.preset=null model.name_or_path=org/m tokenizer.name_or_path=null",
    "model.preset=null model.name_or_path=org/m model.init=scratch model.init_from=ckpt",
    "data.train.0.path=HuggingFaceFW/fineweb-edu data.train.0.data_files=null data.train.0.revision=main",
    "data.train.0.path=squad data.train.0.data_files=null",
    "data.train.0.template='{title}{{x}} {body}'",
    "data.train.0.weight=1 data.train.1={path: org/x, weight: 0.5}",
    "schedule.max_steps=null schedule.max_tokens=1e9 schedule.warmup_steps=0.1",
    "schedule.max_steps=null schedule.num_train_epochs=2 schedule.lr_scheduler_type=constant schedule.warmup_steps=10",
    "schedule.max_steps=null schedule.num_train_epochs=2 schedule.lr_scheduler_type=inverse_sqrt",
    "schedule.num_train_epochs=2",
    "schedule.warmup_steps=100",
    "schedule.lr_scheduler_type=warmup_stable_decay schedule.warmup_steps=0.5 schedule.decay_steps=50",
    f"{EVAL} eval.eval_steps=10 eval.early_stopping_patience=2",
    f"{EVAL} eval.eval_strategy=epoch eval.metric_for_best_model=eval_loss",
    "data.eval={w: [{path: org/x}]} eval.eval_steps=5 eval.metric_for_best_model=eval_w_loss",
    f"{EVAL} eval.eval_strategy=no eval.eval_steps=10",
    "batch.global_batch_size=null batch.per_device_train_batch_size=4",
    "batch.per_device_train_batch_size=4 batch.gradient_accumulation_steps=2",
    "batch.per_device_train_batch_size=4 batch.gradient_accumulation_steps=2 run.expected_world_size=2",
    "data.num_lanes=8 run.expected_world_size=4",
    "checkpoint.save_strategy=epoch",
    "tracking.report_to=[]",
]


@pytest.mark.parametrize("line", ALLOWED)
def test_allowed(loader: Loader, line: str) -> None:
    assert loader.load(*words(line)).config.optimizer.learning_rate == 1e-3


def test_steps_alone_mean_the_strategy(loader: Loader) -> None:
    assert loader.load(EVAL, "eval.eval_steps=10").config.eval.eval_strategy == "steps"
    assert loader.load(EVAL).config.eval.eval_strategy == "no"


def test_the_remedy_of_batch_numbers_names_the_nearest(loader: Loader) -> None:
    problem = loader.problem("batch.global_batch_size=50", "batch.per_device_train_batch_size=8")
    assert problem.remedy == "nearest: 48, 56"
    assert loader.problem("batch.per_device_train_batch_size=32").remedy == "nearest: 32"


def test_a_model_without_a_name_starts_from_scratch(loader: Loader) -> None:
    assert loader.load().config.model.init == "scratch"
    named = loader.load("model.preset=null", "model.name_or_path=org/m")
    assert named.config.model.init == "pretrained"
