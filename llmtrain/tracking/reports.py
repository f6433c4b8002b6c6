"""What a run tells about itself: one `StepReport` a logged step, one `EvalReport` a set and evaluation.

The trainer makes them, every tracker reads them, and `metrics.jsonl` is their `to_json_line()`. A field that is `None`
is unknown and left out; a value that is not finite is written as `null`, because JSON has no word for it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar


@dataclass(frozen=True)
class StepReport:
    """The figures of an optimizer step, over all ranks.

    `loss` is the mean over the step's supervised tokens (None where there is none), `grad_norm` the global norm before
    clipping (None where the step has none). The times are means over the optimizer steps since the last report,
    evaluation and saving left out; `data_wait_seconds` is a part of `step_seconds`. `num_tokens_seen` counts from the
    start of the run, padding left out.
    """

    kind: ClassVar[str] = "train"

    step: int
    epoch: int
    loss: float | None
    learning_rate: float
    grad_norm: float | None
    num_supervised_tokens: int
    num_tokens_seen: int
    tokens_per_second: float
    step_seconds: float
    data_wait_seconds: float
    model_flops_utilization: float | None = None
    peak_memory_bytes: int | None = None

    def to_json_line(self) -> str:
        """The line of `metrics.jsonl`, without its newline."""
        return _json_line({"kind": self.kind, **{f.name: getattr(self, f.name) for f in fields(self)}})

    def figures(self) -> dict[str, float]:
        """What a dashboard gets: the figures under grouped names, and the axes `step` and `num_tokens_seen`."""
        names = [f.name for f in fields(self) if f.name not in ("step", "num_tokens_seen")]
        known = {f"train/{name}": getattr(self, name) for name in names if getattr(self, name) is not None}
        return {"step": self.step, "num_tokens_seen": self.num_tokens_seen, **known}


@dataclass(frozen=True)
class EvalReport:
    """The held-out loss of one set: the sum of its token losses over its `num_supervised_tokens`.

    `eval_set` is its name where there are several sets. `num_tokens_seen` (training tokens until then) is an axis for
    the trackers alone: in `metrics.jsonl` the train lines have it.
    """

    kind: ClassVar[str] = "eval"

    step: int
    eval_loss: float
    num_supervised_tokens: int
    eval_set: str | None = None
    num_tokens_seen: int | None = None

    @property
    def eval_perplexity(self) -> float:
        """exp(eval_loss); infinite where that is beyond a float."""
        try:
            return math.exp(self.eval_loss)
        except OverflowError:
            return math.inf

    def to_json_line(self) -> str:
        """The line of `metrics.jsonl`, without its newline."""
        return _json_line(
            {
                "kind": self.kind,
                "step": self.step,
                "eval_set": self.eval_set,
                "eval_loss": self.eval_loss,
                "eval_perplexity": self.eval_perplexity,
                "num_supervised_tokens": self.num_supervised_tokens,
            }
        )

    def metrics(self) -> dict[str, float]:
        """The figures by the names that `eval.metric_for_best_model` knows: `eval_loss`, or `eval_<set>_loss`."""
        prefix = "eval" if self.eval_set is None else f"eval_{self.eval_set}"
        return {f"{prefix}_loss": self.eval_loss, f"{prefix}_perplexity": self.eval_perplexity}

    def figures(self) -> dict[str, float]:
        """What a dashboard gets: the figures under grouped names, and the axes that are known."""
        prefix = "eval" if self.eval_set is None else f"eval/{self.eval_set}"
        axes: dict[str, float] = {"step": self.step}
        if self.num_tokens_seen is not None:
            axes["num_tokens_seen"] = self.num_tokens_seen
        return {**axes, f"{prefix}/loss": self.eval_loss, f"{prefix}/perplexity": self.eval_perplexity}


def _json_line(values: dict[str, Any]) -> str:
    known = {name: value for name, value in values.items() if value is not None}
    finite = {name: _null_unless_finite(value) for name, value in known.items()}
    return json.dumps(finite, allow_nan=False)


def _null_unless_finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
