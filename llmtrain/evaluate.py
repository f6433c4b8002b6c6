"""`llmtrain eval`: the held-out loss of a Hugging Face folder, on the sets of a configuration, in one process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
import transformers

from llmtrain.config.schema import Config
from llmtrain.data.evaluation import eval_sets
from llmtrain.errors import ConfigError, Problem
from llmtrain.evaluation import Agreed, Evaluation, token_losses_of
from llmtrain.generate import load_folder_config
from llmtrain.models.meta import auto_class
from llmtrain.tasks import build_task
from llmtrain.tracking.reports import EvalReport


def evaluate_folder(folder: Path, config: Config) -> Sequence[EvalReport]:
    """One report a set of `data.eval`, in the dtype of the folder's weights, on the GPU if there is one.

    Raises:
        ConfigError: the folder holds no model, the configuration no held-out set, or the two do not fit.
    """
    if not config.data.eval:
        raise ConfigError(Problem("data.eval", "names no held-out set", "name one, as data.train does"))
    load_folder_config(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    task = build_task(config, tokenizer)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kernel = config.model.attn_implementation
    model = auto_class(config.model.task).from_pretrained(folder, attn_implementation=kernel).to(device)

    evaluation = Evaluation(
        module=model,
        sets=eval_sets(config, tokenizer, task, rank=0, world_size=1),
        token_losses=token_losses_of(task, model, device),
        agree=lambda has_sequence: Agreed(has_sequence, stop_requested=False),
        sum_over_ranks=lambda figures: figures,
        max_batches=config.eval.max_batches,
    )
    reports = evaluation.run(step=0)
    assert reports is not None, "nothing can stop this evaluation"
    return reports
