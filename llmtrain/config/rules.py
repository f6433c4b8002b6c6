"""The rules that tie several keys of a configuration together and need nothing else to be checked.

Each rule is a function from a `Config` to its problems, listed in `RULES` with the paths that it reads: where one of
these had to be put right first, the rule says nothing. Rules that need more than the configuration are where that is
known: the world size in `batching`, the device in `engine`, files in `data`, the model's limits in `models`.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from llmtrain.config.durations import parse_duration
from llmtrain.config.provenance import is_within, leaves
from llmtrain.config.schema import Config, SourceConfig
from llmtrain.config.suggest import listed, nearest
from llmtrain.errors import Problem

LOCAL_FORMATS = ("json", "text", "parquet", "arrow", "csv")
"""`path` of sources whose rows are in files of the user's own."""

SHAPES_WITHOUT_END = ("constant", "inverse_sqrt")
"""Learning-rate shapes that are the same however long the run is."""


@dataclass(frozen=True)
class Rule:
    """A check, and the paths that it reads."""

    check: Callable[[Config], Iterator[Problem]]
    reads: tuple[str, ...]


def rule_problems(config: Config, repaired: Collection[str] = ()) -> list[Problem]:
    """What all rules find, but those that read a path of `repaired` (or what lies within or round it)."""
    return [
        problem
        for rule in RULES
        if not any(is_within(path, read) or is_within(read, path) for path in repaired for read in rule.reads)
        for problem in rule.check(config)
    ]


def _run(config: Config) -> Iterator[Problem]:
    run = config.run
    if re.search(r"[/\\\0]", run.name) or run.name.strip(". ") == "":
        yield Problem("run.name", "cannot be the name of a folder", "use letters, digits, - _ and .", value=run.name)
    if run.overwrite and run.resume_from_checkpoint != "none":
        rule = f"would delete what run.resume_from_checkpoint={run.resume_from_checkpoint} goes on from"
        yield Problem("run.overwrite", rule, "set one of the two", value=True)
    if run.time_limit is not None:
        try:
            parse_duration(run.time_limit)
        except ValueError:
            remedy = "write it with d, h, m and s, such as 30m, 23h50m or 1d2h"
            yield Problem("run.time_limit", "is no duration", remedy, value=run.time_limit)


def _model_choice(config: Config) -> Iterator[Problem]:
    model = config.model
    chosen = [key for key in ("preset", "architecture", "name_or_path") if getattr(model, key) is not None]
    if not chosen:
        remedy = "such as model.preset: gpt2-124m; llmtrain config schema lists all keys"
        yield Problem("model", "needs one of preset, architecture and name_or_path", remedy)
    for key in chosen[1:]:
        rule = f"cannot be set beside model.{chosen[0]}"
        yield Problem(f"model.{key}", rule, "remove one (null unsets it)", value=getattr(model, key))


def _model_weights(config: Config) -> Iterator[Problem]:
    model = config.model
    if model.name_or_path is None and model.init == "pretrained":
        rule = "needs model.name_or_path: a preset or an architecture has no weights"
        yield Problem("model.init", rule, "remove it, or name the model", value=model.init)
    if model.init_from is not None and model.name_or_path is not None and model.init == "pretrained":
        rule = "and model.init=pretrained both say where the weights come from"
        yield Problem("model.init_from", rule, "set model.init: scratch, or remove init_from", value=model.init_from)


def _model_overrides(config: Config) -> Iterator[Problem]:
    """No schema tells numbers from text here, so what the loader left as text for looking wrong is refused."""
    for path, value in leaves(config.model.config_overrides, "model.config_overrides"):
        if isinstance(value, str) and re.fullmatch(r"[-+]?(\.(nan|inf)|0[0-9]+(\.[0-9]*)?)", value.lower()):
            yield Problem(path, "must be a finite number without leading zeros", value=value)


def _tokenizer(config: Config) -> Iterator[Problem]:
    if config.tokenizer.name_or_path is None and config.model.name_or_path is None:
        remedy = "a hub name such as openai-community/gpt2, or a folder"
        yield Problem("tokenizer.name_or_path", "is required where model.name_or_path is not set", remedy)


def _source_lists(config: Config) -> Iterator[tuple[str, list[SourceConfig]]]:
    """Every list of sources with its path."""
    yield "data.train", config.data.train
    if isinstance(config.data.eval, list):
        yield "data.eval", config.data.eval
    elif config.data.eval is not None:
        yield from ((f"data.eval.{name}", sources) for name, sources in config.data.eval.items())


def _sources(config: Config) -> Iterator[Problem]:
    for list_path, sources in _source_lists(config):
        if not sources:
            yield Problem(list_path, "holds no source", "add one, or remove the key")
        for position, source in enumerate(sources):
            yield from _source(f"{list_path}[{position}]", source)


def _source(path: str, source: SourceConfig) -> Iterator[Problem]:
    if source.path in LOCAL_FORMATS:
        if source.data_files in (None, "", []):
            remedy = "such as data_files: data/*.jsonl"
            yield Problem(f"{path}.data_files", f"is required with path: {source.path}", remedy)
        if source.revision is not None:
            rule = f"has no meaning with path: {source.path}, which reads files of one's own"
            yield Problem(f"{path}.revision", rule, "remove it", value=source.revision)
    else:
        meant = nearest(source.path, (*LOCAL_FORMATS, "jsonl"), cutoff=0.8)
        if meant and "/" not in source.path:
            remedy = f"did you mean {'json' if meant == 'jsonl' else meant}?"
            yield Problem(f"{path}.path", "is no format of files of one's own", remedy, value=source.path)
    if source.template is not None:
        if source.text_column != SourceConfig.model_fields["text_column"].default:
            rule = f"cannot be set beside {path}.template, which replaces it"
            yield Problem(f"{path}.text_column", rule, "remove one", value=source.text_column)
        problem = _template_problem(source.template)
        if problem:
            yield Problem(f"{path}.template", problem, "such as '{title}\\n{body}'", value=source.template)


def _template_problem(template: str) -> str:
    """What is wrong with a template, empty where nothing is."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        return f"has unpaired braces ({error}); a brace of the text itself is doubled"
    names = [name for _, name, _, _ in parts if name is not None]
    if not names:
        return "names no column in {braces}"
    if any(spec or conversion for _, _, spec, conversion in parts):
        return "holds a format; a column is named alone"
    if any(not name.strip() for name in names):
        return "has braces without the name of a column"
    return ""


def _weights(config: Config) -> Iterator[Problem]:
    weighted = [source.weight is not None for source in config.data.train]
    if any(weighted) and not all(weighted):
        missing = listed(f"data.train[{position}]" for position, is_set in enumerate(weighted) if not is_set)
        yield Problem("data.train", f"has weights for some sources only: none for {missing}", "set all or none")
    for list_path, sources in _source_lists(config):
        for position, source in enumerate(sources):
            if source.weight is not None and list_path != "data.train":
                rule = "has no meaning: evaluation reads each row once"
                yield Problem(f"{list_path}[{position}].weight", rule, "remove it", value=source.weight)


def _weights_need_an_end(config: Config) -> Iterator[Problem]:
    schedule = config.schedule
    is_weighted = any(source.weight is not None for source in config.data.train)
    if is_weighted and schedule.max_steps is None and schedule.max_tokens is None:
        rule = "need schedule.max_steps or schedule.max_tokens: weighted sources restart by themselves"
        yield Problem("data.train", f"has weights, which {rule}", "add one of the two")


def _eval_names(config: Config) -> Iterator[Problem]:
    if isinstance(config.data.eval, dict):
        if not config.data.eval:
            yield Problem("data.eval", "names no set", "add one, or remove the key")
        for name in config.data.eval:
            if not re.fullmatch(r"[A-Za-z0-9_.\-]+", name):
                rule = f"has a set named {name!r}, which cannot be part of a metric's name"
                yield Problem("data.eval", rule, "use letters, digits, - _ and .")


def _durations(config: Config) -> Iterator[Problem]:
    schedule = config.schedule
    if schedule.max_steps is None and schedule.num_train_epochs is None and schedule.max_tokens is None:
        remedy = "such as schedule.max_steps: 10000"
        yield Problem("schedule", "needs one of max_steps, num_train_epochs and max_tokens", remedy)


def _shape_needs_an_end(config: Config) -> Iterator[Problem]:
    schedule = config.schedule
    if schedule.max_steps is not None or schedule.max_tokens is not None or schedule.num_train_epochs is None:
        return
    remedy = "add schedule.max_steps or schedule.max_tokens"
    if schedule.lr_scheduler_type not in SHAPES_WITHOUT_END:
        rule = "needs to know where the run ends, and schedule.num_train_epochs alone does not tell the step"
        others = f", or take {' or '.join(SHAPES_WITHOUT_END)}"
        yield Problem("schedule.lr_scheduler_type", rule, remedy + others, value=schedule.lr_scheduler_type)
    if 0 < schedule.warmup_steps < 1:
        rule = "is a share of a run whose length in steps schedule.num_train_epochs alone does not tell"
        yield Problem("schedule.warmup_steps", rule, f"{remedy}, or give a count", value=schedule.warmup_steps)


def _phases(config: Config) -> Iterator[Problem]:
    schedule = config.schedule
    has_decay = schedule.lr_scheduler_type == "warmup_stable_decay"
    for key in ("warmup_steps", "decay_steps") if has_decay else ("warmup_steps",):
        value = getattr(schedule, key)
        if value >= 1 and value != int(value):
            rule = "is neither a whole number of steps nor a share of the run (below 1)"
            yield Problem(f"schedule.{key}", rule, value=value)
    if schedule.max_steps is None:
        return
    total = schedule.max_steps
    lengths = {"schedule.warmup_steps": schedule.warmup_steps}
    if has_decay:
        lengths["schedule.decay_steps"] = schedule.decay_steps
    steps = sum(length if length >= 1 else length * total for length in lengths.values())
    if steps > total:
        shown = " + ".join(f"{path}={length:g}" for path, length in lengths.items())
        yield Problem("schedule.max_steps", f"is shorter than {shown}", "shorten them", value=total)


def _evaluation(config: Config) -> Iterator[Problem]:
    evaluation = config.eval
    if evaluation.eval_strategy == "no":
        for key in ("early_stopping_patience", "metric_for_best_model"):
            if getattr(evaluation, key) is not None:
                rule = "needs evaluations, and there are none with eval.eval_strategy=no"
                yield Problem(f"eval.{key}", rule, "set eval.eval_steps", value=getattr(evaluation, key))
        return
    if config.data.eval is None:
        rule = "needs held-out data"
        remedy = "set data.eval, or eval.eval_strategy: no"
        if evaluation.eval_strategy == "steps" and evaluation.eval_steps is not None:
            yield Problem("eval.eval_steps", rule, remedy, value=evaluation.eval_steps)
        else:
            yield Problem("eval.eval_strategy", rule, remedy, value=evaluation.eval_strategy)
    if evaluation.eval_strategy == "steps" and evaluation.eval_steps is None:
        yield Problem("eval.eval_steps", "is required with eval.eval_strategy=steps", "such as eval.eval_steps: 500")


def _best_metric(config: Config) -> Iterator[Problem]:
    metric, patience = config.eval.metric_for_best_model, config.eval.early_stopping_patience
    known = metric_names(config)
    if metric is None and patience is not None and "eval_loss" not in known and known:
        remedy = f"one of {listed(known)}"
        yield Problem("eval.metric_for_best_model", "is required to stop early with several named sets", remedy)
    if metric is not None and known and metric not in known:
        meant = nearest(metric, known)
        remedy = f"did you mean {meant}?" if meant else f"there are {listed(known)}"
        yield Problem("eval.metric_for_best_model", "is no metric of this run", remedy, value=metric)


def metric_names(config: Config) -> list[str]:
    """What `eval.metric_for_best_model` may be: the metrics of the one set, or of each named one."""
    if config.data.eval is None:
        return []
    prefixes = [f"eval_{name}" for name in config.data.eval] if isinstance(config.data.eval, dict) else ["eval"]
    return [f"{prefix}_{metric}" for prefix in prefixes for metric in ("loss", "perplexity")]


def _batch(config: Config) -> Iterator[Problem]:
    batch = config.batch
    total, micro, accumulation = (
        batch.global_batch_size,
        batch.per_device_train_batch_size,
        batch.gradient_accumulation_steps,
    )
    if total is None and micro is None:
        remedy = "set batch.global_batch_size, such as 64"
        yield Problem("batch", "needs global_batch_size or per_device_train_batch_size", remedy)
    if total is None:
        return
    per_rank = (micro or 1) * (accumulation or 1)
    ranks = config.run.expected_world_size
    factors = {"per_device_train_batch_size": micro, "gradient_accumulation_steps": accumulation, "world size": ranks}
    divisor = per_rank * (ranks or 1)
    is_wrong = total != divisor if micro and accumulation and ranks else total % divisor != 0
    if is_wrong:
        shown = " x ".join(f"{name} {value}" for name, value in factors.items() if value)
        rule = f"is not {shown} = {divisor}" if micro and accumulation and ranks else f"is not a multiple of {shown}"
        rule += "" if rule.endswith(f"= {divisor}") or shown.count(" x ") == 0 else f" = {divisor}"
        below = total // divisor * divisor
        near = [below, below + divisor] if below else [divisor]
        remedy = f"nearest: {listed(map(str, near))}" if not (micro and accumulation and ranks) else f"set {divisor}"
        yield Problem("batch.global_batch_size", rule, remedy, value=total)


def _lanes(config: Config) -> Iterator[Problem]:
    lanes, total, ranks = config.data.num_lanes, config.batch.global_batch_size, config.run.expected_world_size
    if lanes is None:
        return
    if total is not None and total % lanes:
        near = max(divisor for divisor in range(1, min(lanes, total) + 1) if total % divisor == 0)
        rule = f"does not divide batch.global_batch_size={total}"
        yield Problem("data.num_lanes", rule, f"the largest divisor below it is {near}", value=lanes)
    if ranks is not None and lanes % ranks:
        rule = f"is not a multiple of run.expected_world_size={ranks}"
        yield Problem("data.num_lanes", rule, f"nearest: {-(-lanes // ranks) * ranks}", value=lanes)


def _report_to(config: Config) -> Iterator[Problem]:
    names = config.tracking.report_to
    for name in dict.fromkeys(name for name in names if names.count(name) > 1):
        yield Problem("tracking.report_to", f"names {name} more than once", "remove one")


RULES = (
    Rule(_run, ("run",)),
    Rule(_model_choice, ("model.preset", "model.architecture", "model.name_or_path")),
    Rule(_model_weights, ("model.name_or_path", "model.init", "model.init_from")),
    Rule(_model_overrides, ("model.config_overrides",)),
    Rule(_tokenizer, ("tokenizer", "model.name_or_path")),
    Rule(_sources, ("data.train", "data.eval")),
    Rule(_weights, ("data.train", "data.eval")),
    Rule(_weights_need_an_end, ("data.train", "schedule")),
    Rule(_eval_names, ("data.eval",)),
    Rule(_durations, ("schedule.max_steps", "schedule.num_train_epochs", "schedule.max_tokens")),
    Rule(_shape_needs_an_end, ("schedule",)),
    Rule(_phases, ("schedule",)),
    Rule(_evaluation, ("data.eval", "eval")),
    Rule(_best_metric, ("data.eval", "eval")),
    Rule(_batch, ("batch", "run.expected_world_size")),
    Rule(_lanes, ("data.num_lanes", "batch.global_batch_size", "run.expected_world_size")),
    Rule(_report_to, ("tracking.report_to",)),
)
