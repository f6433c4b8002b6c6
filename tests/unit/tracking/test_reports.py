"""The lines of metrics.jsonl and the names on a dashboard."""

from __future__ import annotations

import json
import math
from dataclasses import replace

from llmtrain.tracking import EvalReport, StepReport

STEP = StepReport(
    step=7,
    epoch=1,
    loss=2.5,
    learning_rate=3e-4,
    grad_norm=0.75,
    num_supervised_tokens=1000,
    num_tokens_seen=7168,
    tokens_per_second=512.5,
    step_seconds=2.0,
    data_wait_seconds=0.25,
    model_flops_utilization=0.41,
    peak_memory_bytes=123456789,
)
TRAIN_FIELDS = [
    "kind",
    "step",
    "epoch",
    "loss",
    "learning_rate",
    "grad_norm",
    "num_supervised_tokens",
    "num_tokens_seen",
    "tokens_per_second",
    "step_seconds",
    "data_wait_seconds",
    "model_flops_utilization",
    "peak_memory_bytes",
]


def test_a_train_line_has_the_documented_fields() -> None:
    line = STEP.to_json_line()
    assert "\n" not in line
    content = json.loads(line)
    assert list(content) == TRAIN_FIELDS
    assert content["kind"] == "train"
    assert content["learning_rate"] == 3e-4


def test_an_unknown_figure_is_absent_and_one_that_is_not_finite_is_null() -> None:
    assert "loss" not in json.loads(replace(STEP, loss=None).to_json_line())
    report = replace(STEP, model_flops_utilization=None, peak_memory_bytes=None, loss=math.nan, grad_norm=math.inf)
    content = json.loads(report.to_json_line())
    assert "model_flops_utilization" not in content
    assert "peak_memory_bytes" not in content
    assert content["loss"] is None
    assert content["grad_norm"] is None


def test_an_eval_line_has_the_documented_fields_and_the_sets_name_where_there_is_one() -> None:
    one = json.loads(EvalReport(step=5, eval_loss=1.0, num_supervised_tokens=10, num_tokens_seen=99).to_json_line())
    assert list(one) == ["kind", "step", "eval_loss", "eval_perplexity", "num_supervised_tokens"]
    assert one["eval_perplexity"] == math.e
    named = json.loads(EvalReport(step=5, eval_loss=1.0, num_supervised_tokens=10, eval_set="books").to_json_line())
    assert named["eval_set"] == "books"


def test_a_perplexity_beyond_a_float_is_null() -> None:
    report = EvalReport(step=5, eval_loss=1000.0, num_supervised_tokens=10)
    assert report.eval_perplexity == math.inf
    assert json.loads(report.to_json_line())["eval_perplexity"] is None
    assert math.isnan(EvalReport(step=5, eval_loss=math.nan, num_supervised_tokens=10).eval_perplexity)


def test_dashboards_get_both_axes_and_grouped_names() -> None:
    figures = STEP.figures()
    assert figures["step"] == 7
    assert figures["num_tokens_seen"] == 7168
    assert figures["train/loss"] == 2.5
    assert set(figures) == {"step", "num_tokens_seen", *(f"train/{name}" for name in TRAIN_FIELDS[2:])} - {
        "train/num_tokens_seen"
    }
    assert EvalReport(4, 2.0, 10, num_tokens_seen=400).figures() == {
        "step": 4,
        "num_tokens_seen": 400,
        "eval/loss": 2.0,
        "eval/perplexity": math.exp(2.0),
    }
    assert set(EvalReport(4, 2.0, 10, eval_set="books").figures()) == {
        "step",
        "eval/books/loss",
        "eval/books/perplexity",
    }


def test_the_metrics_of_an_evaluation_have_the_names_of_the_configuration() -> None:
    assert EvalReport(4, 2.0, 10).metrics() == {"eval_loss": 2.0, "eval_perplexity": math.exp(2.0)}
    assert set(EvalReport(4, 2.0, 10, eval_set="books").metrics()) == {"eval_books_loss", "eval_books_perplexity"}
