"""The parts of a run, made in the order in which they need each other.

    run folder, checkpoint to resume from -> batch plan -> tokenizer, task, model's configuration -> DeepSpeed's
    dictionary, construction context -> model -> engine -> data -> evaluation -> checkpoint loaded -> trackers

What can be found wrong without the model is found before it is built. Every rank makes all parts; those that only rank
0 has (console, trackers) are null objects elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from llmtrain.batching import BatchPlan, plan_batches
from llmtrain.checkpoint.final import export_final
from llmtrain.checkpoint.model_files import ModelFiles
from llmtrain.checkpoint.store import CheckpointStore, load_weights_only
from llmtrain.config import LoadedConfig, dump_config
from llmtrain.config.schema import Config
from llmtrain.data.evaluation import eval_sets
from llmtrain.data.feed import ReadCounts
from llmtrain.data.loader import RankStep, TrainLoader
from llmtrain.data.tokenizer import load_tokenizer
from llmtrain.data.training_data import check_counts, describe_counts
from llmtrain.dist.runtime import Dist
from llmtrain.engine import ConstructionContext, Engine, construction_context, deepspeed_config, deepspeed_notes
from llmtrain.errors import ConfigError, Problem
from llmtrain.evaluation import Agreed, Evaluation, token_losses_of
from llmtrain.flops import model_flops_utilization, peak_flops
from llmtrain.models import ModelFacts, apply_kernels, build_model, model_facts, resolve_model_config
from llmtrain.progress import Progress, total_steps
from llmtrain.tasks import Task, build_task
from llmtrain.tracking import Console, RunFolder, RunInfo, build_trackers, tracking_problems
from llmtrain.tracking.base import NullTracker, Trackers
from llmtrain.tracking.run_folder import Status

ModelBuilder = Callable[[Config, Any], Any]
"""(configuration, transformers' configuration of the model) to the model; `build_model`, or one's own."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class Parts:
    """A run that is ready to train; see the top for where each part comes from."""

    loaded: LoadedConfig
    dist: Dist
    folder: RunFolder
    console: Console
    plan: BatchPlan
    tokenizer: Any
    task: Task
    facts: ModelFacts
    engine: Engine
    loader: TrainLoader
    evaluation: Evaluation
    store: CheckpointStore
    files: ModelFiles
    tracker: Trackers | NullTracker
    progress: Progress
    lane_states: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By lane, of this rank's lanes: where the data stands after the last step that was trained."""
    has_begun: bool = False
    """Whether the run folder tells of this process."""

    @property
    def config(self) -> Config:
        """The run's configuration."""
        return self.loaded.config

    @property
    def is_done(self) -> bool:
        """Whether an earlier process brought this run to its end, `final/` included."""
        status = self.folder.read_status() if self.dist.is_main else None
        is_done = status is not None and status.status == "done" and status.step == self.progress.step
        return bool(self.dist.broadcast_object(is_done))

    def begin(self) -> None:
        """Write down that the run goes, and how; from here on the run folder changes."""
        self.has_begun = True
        if self.dist.is_main:
            resolved = self.config.model_dump()
            self.folder.write_config(dump_config(self.config), self.loaded.provenance.as_dict(resolved))
        self.write_status("running")
        end = total_steps(self.config.schedule, self.plan.global_batch_size, self.config.data.seq_length)
        self.tracker.start(
            RunInfo(
                name=self.config.run.name,
                config=self.config.model_dump(),
                step=self.progress.step,
                num_tokens_seen=self.progress.num_tokens_seen,
                max_steps=end,
                max_tokens=self.config.schedule.max_tokens,
            )
        )

    def write_status(self, status: Status, reason: str | None = None, exit_status: int | None = None) -> None:
        """Rank 0: say how the run stands, in status.json."""
        if self.dist.is_main:
            self.folder.write_status(status, self.progress.step, reason, exit_status)

    def close(self, status: Status, reason: str, exit_status: int) -> None:
        """The end of a run that has not failed: trackers, status.json, data workers."""
        self.loader.close()
        if self.has_begun:
            self.tracker.finish(status)
            self.write_status(status, reason, exit_status)

    def save(self) -> Path:
        """Write a checkpoint of everything as it is after the last step; a collective."""
        lanes: dict[int, dict[str, Any]] = {}
        for states in self.dist.all_gather_objects(self.lane_states):
            lanes.update(states)
        trainer_state = {
            "progress": self.progress.to_dict(),
            "num_lanes": self.plan.num_lanes,
            "lanes": lanes,
            "fingerprint": self.loader.fingerprint,
            "tracker_run_id": self.dist.broadcast_object(self.tracker.run_id),
        }
        path = self.store.save(self.progress.step, self.engine, trainer_state, {})
        self.write_status("running")
        self.console.say(f"saved {path}")
        return path

    def check_epoch(self, epoch: int) -> None:
        """What all ranks read of an epoch that has ended; a collective.

        Raises:
            DataError: nothing at all was read, or too much of it was bad.
        """
        counts = sum(self.dist.all_gather_objects(self.loader.counts), ReadCounts())
        check_counts(counts, self.config.data, f"epoch {epoch}")
        self.console.say(f"epoch {epoch} has ended: {describe_counts(counts)}")

    def weights_are_finite(self) -> bool:
        """Whether no rank holds a weight that is NaN or infinite; a collective."""
        weights = (getattr(parameter, "ds_tensor", parameter) for parameter in self.engine.module.parameters())
        is_finite = all(bool(torch.isfinite(weight).all()) for weight in weights)
        return all(self.dist.all_gather_objects(is_finite))

    def export_final(self) -> None:
        """Write `final/`, the Hugging Face folder; a collective."""
        export_final(self.engine, self.files, self.folder.final, self.dist)
        self.console.say(f"exported the model to {self.folder.final}")

    def trace(self, step: int, data: RankStep) -> None:
        """With `data.trace`: write which documents start in this step; a collective then."""
        if not self.config.data.trace:
            return
        gathered = self.dist.gather_objects([row.to_json_line(step) for row in data.trace])
        writer = self.folder.trace() if self.dist.is_main else None
        if writer is not None:
            for lines in gathered:
                for line in lines:
                    writer.append(line)
            writer.close()

    def utilization(self, tokens_per_second: float) -> float | None:
        """Model FLOPs utilization of all devices, None where the peak is not known."""
        if self.dist.device.type != "cuda":
            return None
        peak = peak_flops(torch.cuda.get_device_name(self.dist.device), self.config.precision)
        return model_flops_utilization(tokens_per_second, self.facts.flops_per_token, peak, self.dist.world_size)


@dataclass(frozen=True)
class Resume:
    """What a run continues: nothing, or a checkpoint, whose trainer state is read before anything is built."""

    path: Path | None = None
    state: dict[str, Any] | None = None

    @classmethod
    def find(cls, config: Config, folder: RunFolder, dist: Dist, console: Console) -> Resume:
        """What `run.resume_from_checkpoint` says; a collective."""
        store = CheckpointStore(folder.checkpoints, dist, say=console.say)
        path = store.find(config.run.resume_from_checkpoint)
        if path is None:
            return cls()
        return cls(path, store.read_trainer_state(path))

    @property
    def num_lanes(self) -> int | None:
        """The lanes that the data was dealt to."""
        return int(self.state["num_lanes"]) if self.state else None

    @property
    def progress(self) -> Progress:
        """How far the run had come."""
        return Progress.from_dict(self.state["progress"]) if self.state else Progress()

    @property
    def tracker_run_id(self) -> str | None:
        """W&B's id of the run."""
        return self.state["tracker_run_id"] if self.state else None

    @property
    def loader_state(self) -> dict[str, Any] | None:
        """Where the data stands, for every lane."""
        if self.state is None:
            return None
        lanes = {int(lane): state for lane, state in self.state["lanes"].items()}
        return {"lanes": lanes, "fingerprint": self.state["fingerprint"]}


def build_parts(
    loaded: LoadedConfig, dist: Dist, folder: RunFolder, console: Console, model_builder: ModelBuilder = build_model
) -> Parts:
    """All parts of the run; every rank calls it, once the folder is claimed.

    Raises:
        ConfigError: what the user wrote or named cannot be used.
        CheckpointError: the checkpoint to resume from cannot be loaded.
    """
    config = loaded.config
    for note in (*loaded.notes, *deepspeed_notes(config), *_notes_on_device(config, dist)):
        console.warn(note)
    resume = Resume.find(config, folder, dist, console)
    plan = plan_batches(config.batch, dist.world_size, config.data.num_lanes or resume.num_lanes)
    ds_config = deepspeed_config(config, plan, dist.device.type)
    tokenizer = load_tokenizer(config)
    task = build_task(config, tokenizer)
    model_config = resolve_model_config(config, tokenizer)
    facts = model_facts(config, model_config)
    loader = TrainLoader(config, tokenizer, task, plan, dist.rank, state=resume.loader_state)
    with construction_context(ds_config) as context:
        model = model_builder(config, model_config)
    engine = _build_engine(config, model, ds_config, plan, dist, console, context)
    files = ModelFiles.of(engine.module, tokenizer, DTYPES[config.precision])
    store = CheckpointStore(
        folder.checkpoints,
        dist,
        save_total_limit=config.checkpoint.save_total_limit,
        model_files=files,
        say=console.say,
    )
    _load(config, resume, store, engine, dist)
    progress = resume.progress
    if progress.best_step:
        store.protect_best(progress.best_step)
    if progress.is_between_epochs:
        loader.start_epoch(progress.epoch)
    tracker = build_trackers(
        config.tracking, folder, console, is_main=dist.is_main, resume_run_id=resume.tracker_run_id
    )
    _announce(console, config, plan, facts, progress)
    return Parts(
        loaded=loaded,
        dist=dist,
        folder=folder,
        console=console,
        plan=plan,
        tokenizer=tokenizer,
        task=task,
        facts=facts,
        engine=engine,
        loader=loader,
        evaluation=_build_evaluation(config, tokenizer, task, engine, dist),
        store=store,
        files=files,
        tracker=tracker,
        progress=progress,
        lane_states=loader.lane_states,
    )


def check_start(config: Config, dist: Dist) -> None:
    """What can be refused before anything is touched.

    Raises:
        ConfigError: another number of ranks was expected, or a tracker's package is missing.
    """
    problems = tracking_problems(config.tracking)
    expected = config.run.expected_world_size
    if expected and expected != dist.world_size:
        rule = f"is not the number of ranks that were started, {dist.world_size}"
        remedy = "check the hostfile or the launcher's arguments, or remove the key"
        problems.append(Problem("run.expected_world_size", rule, remedy, expected))
    if problems:
        raise ConfigError(problems)


def _build_engine(
    config: Config,
    model: Any,
    ds_config: dict[str, Any],
    plan: BatchPlan,
    dist: Dist,
    console: Console,
    context: ConstructionContext,
) -> Engine:
    for line in apply_kernels(model, config.kernels):
        console.say(line)
    if config.run.deterministic:
        torch.use_deterministic_algorithms(True)
    # The weights came from a generator of their own; what follows (dropout) differs between ranks.
    _seed_rank(config.run.seed, dist.rank)
    return Engine.create(model, config, ds_config, plan, dist.device, context)


def _seed_rank(seed: int, rank: int) -> None:
    torch.manual_seed(int(np.random.SeedSequence([seed, rank]).generate_state(1, np.uint64)[0] >> 1))


def _load(config: Config, resume: Resume, store: CheckpointStore, engine: Engine, dist: Dist) -> None:
    if resume.path is not None:
        store.load(resume.path, engine)
    elif config.model.init_from:
        load_weights_only(Path(config.model.init_from), engine, dist)


def _build_evaluation(config: Config, tokenizer: Any, task: Task, engine: Engine, dist: Dist) -> Evaluation:
    agreement = dist.agreement()

    def agree(has_sequence: bool) -> Agreed:
        agreement.post(0, has_sequence, stop_requested=dist.stop.requested is not None)
        agreed = agreement.wait()
        return Agreed(agreed.any_sequence, agreed.stop_requested)

    def sum_over_ranks(figures: list[float]) -> list[float]:
        return [float(value) for value in dist.all_reduce_sum(torch.tensor(figures, dtype=torch.float64))]

    return Evaluation(
        module=engine.deepspeed,
        sets=eval_sets(config, tokenizer, task, dist.rank, dist.world_size),
        token_losses=token_losses_of(task, engine.forward_model, dist.device),
        agree=agree,
        sum_over_ranks=sum_over_ranks,
        max_batches=config.eval.max_batches,
    )


def _notes_on_device(config: Config, dist: Dist) -> list[str]:
    if config.precision != "bf16" or dist.device.type != "cpu":
        return []
    capabilities = torch.cpu.get_capabilities()
    if capabilities.get("amx_bf16") or capabilities.get("avx512_bf16"):
        return []
    return ["this CPU has no bf16 instructions, so bf16 is slower than fp32 here: precision=fp32 is the faster choice"]


def _announce(console: Console, config: Config, plan: BatchPlan, facts: ModelFacts, progress: Progress) -> None:
    console.say(
        f"{facts.num_parameters:,} parameters, {config.precision}, ZeRO stage {config.zero_stage}; "
        f"{plan.global_batch_size} sequences of {config.data.seq_length} = micro-batch {plan.micro_batch_size} x "
        f"accumulation {plan.gradient_accumulation_steps} x {plan.world_size} ranks"
    )
    if progress.step:
        console.say(f"resuming after step {progress.step}")
