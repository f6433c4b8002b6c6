"""What a user who wrote an unknown key most likely meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from llmtrain.config.schema_paths import all_paths, section_at

FAMILIAR_NAMES = {
    "lr": "optimizer.learning_rate",
    "betas": "optimizer.adam_beta1 and optimizer.adam_beta2",
    "eps": "optimizer.adam_epsilon",
    "beta1": "optimizer.adam_beta1",
    "beta2": "optimizer.adam_beta2",
    "optim": "optimizer.name",
    "gradient_clipping": "optimizer.max_grad_norm",
    "scheduler": "schedule.lr_scheduler_type",
    "lr_scheduler": "schedule.lr_scheduler_type",
    "warmup_ratio": "schedule.warmup_steps (below 1 it is a share of the run)",
    "min_lr": "schedule.min_lr_rate (a share of the learning rate)",
    "epochs": "schedule.num_train_epochs",
    "num_epochs": "schedule.num_train_epochs",
    "bf16": "precision: bf16",
    "fp16": "precision: fp16",
    "dtype": "precision",
    "torch_dtype": "precision",
    "batch_size": "batch.global_batch_size",
    "train_batch_size": "batch.global_batch_size",
    "micro_batch_size": "batch.per_device_train_batch_size",
    "train_micro_batch_size_per_gpu": "batch.per_device_train_batch_size",
    "evaluation_strategy": "eval.eval_strategy",
    "dataset": "data.train",
    "dataset_name": "data.train",
    "train_file": "data.train",
    "model_name_or_path": "model.name_or_path",
    "model_name": "model.name_or_path",
    "tokenizer_name": "tokenizer.name_or_path",
    "max_seq_length": "data.seq_length",
    "max_length": "data.seq_length",
    "block_size": "data.seq_length",
    "wandb_project": "tracking.project",
    "run_name": "run.name",
    "resume": "run.resume_from_checkpoint",
    "overwrite_output_dir": "run.overwrite",
    "stage": "deepspeed.zero_optimization.stage",
    "zero_stage": "deepspeed.zero_optimization.stage",
}
"""Names that Hugging Face's Trainer, DeepSpeed or habit give to keys of ours."""


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known name that looks most like `name`, None where none does."""
    by_lower = {candidate.lower().replace("-", "_"): candidate for candidate in known}
    found = difflib.get_close_matches(name.lower().replace("-", "_"), by_lower, n=1, cutoff=cutoff)
    return by_lower[found[0]] if found else None


def listed(names: Iterable[str]) -> str:
    """`a, b, c`."""
    return ", ".join(names)


def sibling_meant(path: str) -> str | None:
    """The key of the same section that an unknown key most likely stands for."""
    outer, _, key = path.rpartition(".")
    section = section_at(outer)
    return nearest(key, section.model_fields) if section else None


def remedy_for_unknown(path: str, deepspeed_keys: Iterable[str]) -> str:
    """What to write in the place of an unknown key."""
    outer, _, key = path.rpartition(".")
    section = section_at(outer)
    siblings = list(section.model_fields) if section else []
    close = nearest(key, siblings, cutoff=0.85)
    if close:
        return f"did you mean {_joined(outer, close)}?"
    meant = _elsewhere(key, deepspeed_keys) or _joined(outer, nearest(key, siblings))
    if not meant:
        by_name = {known.rpartition(".")[2]: known for known in all_paths() if not known.endswith(f".{key}")}
        meant = by_name.get(nearest(key, by_name, cutoff=0.75) or "", "")
    if meant:
        return f"did you mean {meant}?"
    hint = "; sizes of the model go under model.config_overrides" if outer == "model" else ""
    return f"the keys here are {listed(siblings)}{hint}"


def _elsewhere(key: str, deepspeed_keys: Iterable[str]) -> str:
    """The places where a key of exactly this name stands, or would stand under its usual name."""
    places = [known for known in all_paths() if known.rpartition(".")[2] == key]
    if places and len(places) <= 3:
        return " or ".join(place for place in places)
    if key in FAMILIAR_NAMES:
        return FAMILIAR_NAMES[key]
    return f"deepspeed.{key}" if key in deepspeed_keys else ""


def _joined(outer: str, key: str | None) -> str:
    return (f"{outer}.{key}" if outer else key) if key else ""
