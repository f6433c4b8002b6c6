"""`llmtrain config show|check|schema|diff`, by the console script's own function."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from llmtrain.cli import main
from llmtrain.config import load_config
from tests.unit.config.support import MINIMAL, Loader


def test_show_is_a_configuration_with_origins(loader: Loader, capsys: pytest.CaptureFixture[str]) -> None:
    loader.write(MINIMAL)
    assert main(["config", "show", "--config", "run.yaml", "run.seed=5", "--data.num_lanes=8"]) == 0
    shown = capsys.readouterr().out
    assert "  seed: 5  # command line\n" in shown
    assert "  num_lanes: 8  # command line\n" in shown
    assert "  learning_rate: 0.001  # run.yaml:10\n" in shown
    assert load_config([loader.write(shown, "shown.yaml")]).config.run.seed == 5


def test_check_says_ok_or_every_problem(loader: Loader, capsys: pytest.CaptureFixture[str]) -> None:
    loader.write(MINIMAL)
    assert main(["config", "check", "--config", "run.yaml"]) == 0
    assert capsys.readouterr().out == "OK\n"
    arguments = ["check", "--config", "run.yaml", "precision=bf61", "--deepspeed.zero_optimization.stag=2"]
    assert main(["config", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "llmtrain: 2 problems:\n"
        "  - precision='bf61' (command line) is not one of fp32, bf16, fp16; did you mean bf16?\n"
        "  - deepspeed.zero_optimization.stag=2 (command line) is not a key that DeepSpeed reads; "
        "did you mean deepspeed.zero_optimization.stage?\n"
    )


def test_several_files_and_a_ds_config(loader: Loader, capsys: pytest.CaptureFixture[str]) -> None:
    loader.write(MINIMAL)
    loader.write("run: {seed: 7}\n", "more.yaml")
    loader.write('{"zero_optimization": {"stage": 1, "reduce_bucket_size": "auto"}}', "ds.json")
    assert main(["config", "show", "--config", "run.yaml", "--config", "more.yaml", "--deepspeed", "ds.json"]) == 0
    shown = capsys.readouterr().out
    assert "  seed: 7  # more.yaml:1\n" in shown
    assert "    stage: 1  # ds.json\n" in shown
    assert shown.endswith('is "auto" in ds.json: DeepSpeed\'s default is taken\n')


def test_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "llmtrain run"


def test_diff_names_what_differs(loader: Loader, capsys: pytest.CaptureFixture[str]) -> None:
    loader.write(MINIMAL)
    loader.write(MINIMAL.replace("1e-3", "2e-3") + "precision: fp32\n", "other.yaml")
    assert main(["config", "diff", "run.yaml", "other.yaml"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["optimizer.learning_rate: 0.001 -> 0.002", 'precision: "bf16" -> "fp32"']
    overrides = ["optimizer.learning_rate=1", "--precision=bf16"]
    assert main(["config", "diff", "run.yaml", "other.yaml", *overrides]) == 0
    assert main(["config", "diff", "run.yaml", "run.yaml"]) == 0
    assert main(["config", "diff", "run.yaml", "gone.yaml"]) == 2
    assert "gone.yaml does not exist" in capsys.readouterr().err


def test_an_unknown_option_is_no_override(loader: Loader, capsys: pytest.CaptureFixture[str]) -> None:
    loader.write(MINIMAL)
    with pytest.raises(SystemExit) as caught:
        main(["config", "check", "--config", "run.yaml", "--verbose"])
    assert caught.value.code == 2
    assert "unrecognized arguments: --verbose" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["config", "schema"]])
def test_the_commands_import_nothing_heavy(arguments: list[str]) -> None:
    program = (
        "import contextlib, io, sys\nfrom llmtrain.cli import main\n"
        f"with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n    main({arguments})\n"
        "print(sorted({'torch', 'deepspeed', 'transformers', 'datasets', 'numpy'} & set(sys.modules)))\n"
    )
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr
