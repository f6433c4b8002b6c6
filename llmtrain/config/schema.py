"""The configuration of a run: every key with its default, its unit and its meaning.

A run is one `Config`. `load_config` makes it from YAML files and overrides; nothing else reads the user's files. Names
are Hugging Face's where the same idea has one there, and DeepSpeed's inside `deepspeed:`. What a value may be is in
`types.py`; the rules that tie several keys together are in `rules.py`, those of the `deepspeed:` block in
`deepspeed_rules.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, Tag, model_validator

from llmtrain.config.types import (
    Bool,
    Float,
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Str,
    by_shape,
)

Tracker = Literal["wandb", "tensorboard", "mlflow", "comet_ml", "aim", "clearml", "dvclive", "swanlab", "trackio"]


class Section(BaseModel):
    """A block of the configuration: unknown keys are refused, values do not change once checked."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class RunConfig(Section):
    """Where the run lives, how it starts and when it stops."""

    name: Str = Field(
        "run",
        min_length=1,
        description="Name of the run; its folder is <output_dir>/<name>. Default: the name of the first --config "
        "file without its ending.",
    )
    output_dir: Str = Field("runs", description="Folder that holds the run folders.")
    seed: NonNegativeInt = Field(
        42, description="Seed of the initial weights, the order of the data, masking and dropout."
    )
    deterministic: Bool = Field(
        False,
        description="Use deterministic algorithms only; bitwise equal runs on one machine and world size, at some"
        " cost in speed.",
    )
    resume_from_checkpoint: Str = Field(
        "none", description="none | auto (the newest complete checkpoint of this run) | the path of a checkpoint."
    )
    overwrite: Bool = Field(False, description="Delete what a run folder of the same name holds and start anew.")
    stop_at_step: PositiveInt | None = Field(
        None,
        description="End after this optimizer step as a signal would: save a checkpoint and exit with 75. The "
        "schedule does not change.",
    )
    time_limit: Str | None = Field(
        None,
        description="Stop with a checkpoint and status 75 once the run has lasted this long, such as 30m or "
        "23h50m or 1d2h.",
    )
    expected_world_size: PositiveInt | None = Field(None, description="Refuse to start on any other number of ranks.")


class ModelConfig(Section):
    """What is trained. Exactly one of preset, architecture and name_or_path."""

    task: Literal["causal_lm", "masked_lm"] = Field(
        "causal_lm", description="causal_lm (GPT style) or masked_lm (BERT style)."
    )
    preset: Str | None = Field(
        None, description="A model of llmtrain's table, from scratch, such as gpt2-124m, bert-base, llama-125m."
    )
    architecture: Str | None = Field(
        None,
        description="A transformers model type, from scratch, such as gpt2, llama, bert; its sizes are in "
        "config_overrides.",
    )
    name_or_path: Str | None = Field(None, description="A Hugging Face hub name or a folder saved by transformers.")
    init: Literal["scratch", "pretrained"] = Field(
        "pretrained",
        description="For name_or_path: its weights, or new weights with its architecture. Else always scratch.",
    )
    config_overrides: dict[str, Any] = Field(
        default_factory=dict,
        description="Keys of the transformers configuration to change, such as n_layer: 6. An unknown key is refused.",
    )
    pad_vocab_to_multiple_of: PositiveInt = Field(
        64,
        description="From scratch, the embedding has a multiple of this many rows (tensor cores like it).",
    )
    attn_implementation: Literal["eager", "sdpa", "flash_attention_2", "flex_attention"] = Field(
        "sdpa", description="Attention kernel, by transformers' names."
    )
    gradient_checkpointing: Bool = Field(
        False, description="Recompute activations in the backward pass: less memory, about a third more computation."
    )
    trust_remote_code: Bool = Field(False, description="Run model code that comes with name_or_path.")
    init_from: Str | None = Field(
        None, description="A checkpoint of llmtrain whose weights (alone) a new run starts from."
    )

    @model_validator(mode="before")
    @classmethod
    def _scratch_without_a_name(cls, data: Any) -> Any:
        # A preset or an architecture has no weights: the resolved configuration then says so.
        if isinstance(data, dict) and data.get("init") is None and data.get("name_or_path") is None:
            return {**data, "init": "scratch"}
        return data


class TokenizerConfig(Section):
    """How text becomes tokens."""

    name_or_path: Str | None = Field(
        None, description="A Hugging Face hub name or a folder with a tokenizer. Default: model.name_or_path."
    )


class SourceConfig(Section):
    """One source of documents, with the meanings of datasets.load_dataset."""

    path: Str = Field(
        examples=["json"],
        description="A hub dataset, or json | text | parquet | arrow | csv for files of one's own.",
    )
    name: Str | None = Field(None, description="The dataset's configuration (subset).")
    split: Str = Field("train", description="The split to read.")
    revision: Str | None = Field(None, description="Commit, tag or branch of a hub dataset.")
    data_files: (
        Annotated[
            Annotated[Str, Tag("<scalar>")] | Annotated[list[Str], Tag("<list>")],
            by_shape("a path or glob, or a list of them"),
        ]
        | None
    ) = Field(None, description="Paths or globs, for files of one's own. Relative to the working directory.")
    text_column: Str = Field("text", description="The column that holds a document's text.")
    template: Str | None = Field(
        None, description="Text made from several columns, such as '{title}\\n{body}'; replaces text_column."
    )
    weight: PositiveFloat | None = Field(
        None, description="Share of the tokens among the sources; for all of them or for none."
    )


class PackingConfig(Section):
    """Documents are put end to end and cut into sequences of seq_length tokens."""

    isolate_documents: Bool = Field(
        True,
        description="Attention does not cross document boundaries, positions restart, no token predicts the next "
        "document's first.",
    )


class DataConfig(Section):
    """What is read, and how documents become sequences."""

    train: list[SourceConfig] = Field(
        min_length=1,
        examples=[[{"path": "json", "data_files": "data/*.jsonl"}]],
        description="The training sources.",
    )
    eval: (
        Annotated[
            Annotated[list[SourceConfig], Tag("<list>")] | Annotated[dict[str, list[SourceConfig]], Tag("<map>")],
            by_shape("a list of sources, or names with a list of sources each"),
        ]
        | None
    ) = Field(None, description="Held-out sources: a list, or names with a list each (one loss per name).")
    seq_length: PositiveInt = Field(1024, description="Tokens per sequence.")
    packing: Annotated[
        Annotated[Literal[False], Tag("<scalar>")] | Annotated[PackingConfig, Tag("<map>")],
        by_shape("false, or the packing's keys"),
    ] = Field(
        default_factory=PackingConfig,
        description="false: one document a sequence, padded (a longer one becomes several); or the packing's keys.",
    )
    shuffle_buffer: PositiveInt = Field(
        10_000, description="Rows that are shuffled together. 1 keeps the order of the files."
    )
    num_lanes: PositiveInt | None = Field(
        None,
        description="Logical data streams; divides global_batch_size, and the world size divides it. Default: "
        "global_batch_size up to 512, above that its largest divisor up to 512.",
    )
    on_bad_record: Literal["error", "skip"] = Field(
        "error", description="A record that cannot be read ends the run, or is skipped and counted."
    )
    max_bad_fraction: Fraction = Field(
        0.01, description="With on_bad_record: skip, the share of bad records in an epoch above which the run ends."
    )
    trace: Bool = Field(
        False, description="Write trace.jsonl: the step, lane, source, shard and row of every document."
    )
    mlm_probability: Annotated[Float, Field(gt=0, lt=1)] = Field(
        0.15,
        description="masked_lm: share of the tokens that are chosen for prediction (80 % masked, 10 % random, 10 "
        "% kept).",
    )


class BatchConfig(Section):
    """Sizes in sequences.

    global_batch_size = per_device_train_batch_size x gradient_accumulation_steps x world size.
    """

    global_batch_size: PositiveInt | None = Field(
        None, description="Sequences per optimizer step over all ranks; the knob that decides the training."
    )
    per_device_train_batch_size: PositiveInt | None = Field(
        None, description="Micro-batch: sequences that one rank runs forward at once."
    )
    gradient_accumulation_steps: PositiveInt | None = Field(
        None, description="Micro-batches per rank and optimizer step; derived from the other two, or 1."
    )


class OptimizerConfig(Section):
    """The optimizer; biases and norms are never decayed."""

    name: Literal["adamw", "lion", "muon"] = Field(
        "adamw",
        description="adamw (fused on each device, DeepSpeed's CPUAdam under offload), lion, muon (hidden "
        "matrices; AdamW for the rest).",
    )
    learning_rate: PositiveFloat = Field(examples=[3e-4], description="Peak learning rate.")
    weight_decay: NonNegativeFloat = Field(0.0, description="Decoupled weight decay of matrices and embeddings.")
    adam_beta1: Annotated[Float, Field(ge=0, lt=1)] = Field(
        0.9, description="Decay rate of the first moment (adamw, lion; momentum of muon is 0.95)."
    )
    adam_beta2: Annotated[Float, Field(ge=0, lt=1)] = Field(
        0.999, description="Decay rate of adamw's second moment; of lion's momentum, where 0.99 is usual."
    )
    adam_epsilon: PositiveFloat = Field(1e-8, description="Added to the denominator of AdamW.")
    max_grad_norm: NonNegativeFloat = Field(
        1.0, description="Clip the global gradient norm to this; 0 switches clipping off."
    )


class ScheduleConfig(Section):
    """How long the run is and how the learning rate moves.

    The first end reached of max_steps, num_train_epochs and max_tokens ends the run.
    """

    lr_scheduler_type: Literal["constant", "linear", "cosine", "warmup_stable_decay", "inverse_sqrt"] = Field(
        "cosine", description="Shape of the learning rate after the warm-up."
    )
    warmup_steps: NonNegativeFloat = Field(
        0, description="Linear warm-up: optimizer steps (1 or more), or a share of the run (below 1)."
    )
    min_lr_rate: Fraction = Field(
        0.0,
        description="The learning rate at the last step, as a share of the peak (linear, cosine, warmup_stable_decay).",
    )
    decay_steps: PositiveFloat = Field(
        0.1,
        description="warmup_stable_decay: length of the final decay, in steps (1 or more) or as a share of the "
        "run (below 1).",
    )
    max_steps: PositiveInt | None = Field(None, description="Optimizer steps; epochs repeat until then.")
    num_train_epochs: PositiveInt | None = Field(None, description="Passes over the training data.")
    max_tokens: PositiveInt | None = Field(None, description="Tokens trained on (padding not counted).")


class KernelsConfig(Section):
    """Which parts of the model are replaced by faster ones with equal numbers."""

    gelu: Bool = Field(True, description="transformers' tanh GELU written in Python is replaced by torch's own.")


class EvalConfig(Section):
    """When the held-out loss is measured, and what follows from it."""

    eval_strategy: Literal["no", "steps", "epoch"] = Field(
        "no",
        description="Default: steps where eval_steps is set, else no. The last step is always evaluated where "
        "data.eval is set and the strategy is not no.",
    )
    eval_steps: PositiveInt | None = Field(None, description="Optimizer steps between evaluations.")
    per_device_eval_batch_size: PositiveInt = Field(
        8, description="Sequences that one rank evaluates at once; the loss does not depend on it."
    )
    max_batches: PositiveInt | None = Field(
        None,
        description="Evaluate only the first max_batches x per_device_eval_batch_size x world size sequences of "
        "each set.",
    )
    metric_for_best_model: Str | None = Field(
        None,
        description="eval_loss or eval_perplexity; with named sets eval_<set>_loss or eval_<set>_perplexity. Keeps "
        "the best checkpoint through retention. Default with early stopping and one set: eval_loss.",
    )
    greater_is_better: Bool = Field(False, description="Whether a larger metric is the better one.")
    early_stopping_patience: PositiveInt | None = Field(
        None, description="End the run after this many evaluations in a row that did not improve the metric."
    )

    @model_validator(mode="before")
    @classmethod
    def _steps_alone_mean_the_strategy(cls, data: Any) -> Any:
        return _strategy_default(data, "eval_strategy", "eval_steps", "no")


class CheckpointConfig(Section):
    """When the whole state of the run is saved, and how long it is kept."""

    save_strategy: Literal["no", "steps", "epoch"] = Field(
        "steps", description="no: no checkpoints but the one of an interruption; final/ is written in any case."
    )
    save_steps: PositiveInt = Field(500, description="Optimizer steps between checkpoints.")
    save_total_limit: PositiveInt | None = Field(
        None,
        description="Checkpoints to keep (the newest); the best, and the one resumed from, are kept besides. "
        "Default: all.",
    )


class TrackingConfig(Section):
    """Where the figures go, besides the console and metrics.jsonl, which are always written."""

    report_to: list[Tracker] = Field(
        default_factory=lambda: list[Tracker](["wandb"]),
        description="W&B by its own SDK; the others through accelerate. [] for none.",
    )
    logging_steps: PositiveInt = Field(
        10, description="Optimizer steps between logged lines; the first and the last step are always logged."
    )
    project: Str = Field("llmtrain", description="W&B project.")
    entity: Str | None = Field(None, description="W&B team or user. Default: the account's own.")
    tags: list[Str] = Field(default_factory=list, description="W&B tags.")
    notes: Str | None = Field(None, description="W&B notes.")


class FaultConfig(Section):
    """What the run bears before it ends itself."""

    max_bad_steps: PositiveInt = Field(
        5, description="Steps in a row without a finite loss and gradient (skipped on all ranks) that end the run."
    )
    stall_timeout: PositiveFloat = Field(
        600.0, description="Seconds that a collective operation may wait for another rank before the run fails."
    )


class Config(Section):
    """A whole run."""

    run: RunConfig = Field(default_factory=lambda: RunConfig())
    model: ModelConfig
    tokenizer: TokenizerConfig = Field(default_factory=lambda: TokenizerConfig())
    data: DataConfig
    batch: BatchConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "bf16", description="Arithmetic of forward and backward; master weights and moments are fp32."
    )
    kernels: Annotated[
        Annotated[Literal["auto", "off"], Tag("<scalar>")] | Annotated[KernelsConfig, Tag("<map>")],
        by_shape("auto, off, or a mapping"),
    ] = Field(
        "auto", description="auto: every replacement that fits; off: the model as transformers has it; or one key each."
    )
    deepspeed: dict[str, Any] = Field(
        default_factory=dict,
        description="DeepSpeed's own keys (or the path of a ds_config JSON): zero_optimization and what llmtrain "
        "does not own.",
    )
    eval: EvalConfig = Field(default_factory=lambda: EvalConfig())
    checkpoint: CheckpointConfig = Field(default_factory=lambda: CheckpointConfig())
    tracking: TrackingConfig = Field(default_factory=lambda: TrackingConfig())
    fault: FaultConfig = Field(default_factory=lambda: FaultConfig())

    @property
    def zero_stage(self) -> int:
        """DeepSpeed's ZeRO stage, 0 to 3."""
        return int(self.deepspeed.get("zero_optimization", {}).get("stage", 0))


def _strategy_default(data: Any, strategy_key: str, steps_key: str, default: str) -> Any:
    if isinstance(data, dict) and strategy_key not in data:
        strategy = "steps" if data.get(steps_key) is not None else default
        return {**data, strategy_key: strategy}
    return data
