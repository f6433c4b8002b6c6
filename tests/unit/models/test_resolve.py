"""From a run's configuration to the model's, and all that is refused on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from llmtrain.errors import ConfigError, HubUnreachableError
from llmtrain.models import build_model, resolve_model_config
from tests.support.tiny_models import GPT2_SIZES, LLAMA_SIZES, tiny_config, tiny_tokenizer

TOKENIZER = tiny_tokenizer()


def _refused(match: str, tokenizer: Any = TOKENIZER, architecture: str = "gpt2", **sections: Any) -> ConfigError:
    with pytest.raises(ConfigError, match=match) as caught:
        resolve_model_config(tiny_config(architecture, **sections), tokenizer)
    return caught.value


@pytest.fixture(scope="session")
def saved_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny GPT-2 with 128 rows of vocabulary."""
    folder = tmp_path_factory.mktemp("model")
    config = tiny_config("gpt2")
    build_model(config, resolve_model_config(config, TOKENIZER)).save_pretrained(folder)
    return folder


# --- vocabulary -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("multiple", "requested", "rows"), [(64, None, 128), (1, None, 100), (64, 200, 256), (1, 200, 200), (8, None, 104)]
)
def test_vocabulary_from_the_tokenizer(multiple: int, requested: int | None, rows: int) -> None:
    overrides = {**GPT2_SIZES, **({"vocab_size": requested} if requested else {})}
    config = tiny_config(model={"pad_vocab_to_multiple_of": multiple, "config_overrides": overrides})
    assert resolve_model_config(config, TOKENIZER).vocab_size == rows


def test_vocabulary_smaller_than_the_tokenizer() -> None:
    model = {"config_overrides": {**GPT2_SIZES, "vocab_size": 99}}
    _refused(r"model\.config_overrides\.vocab_size=99 is smaller than the tokenizer's vocabulary of 100", model=model)


def test_added_tokens_count() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens([f"<extra{i}>" for i in range(29)])
    assert resolve_model_config(tiny_config(), tokenizer).vocab_size == 192


def test_special_tokens_are_the_tokenizers() -> None:
    bert = resolve_model_config(tiny_config("bert"), tiny_tokenizer("bert"))
    assert (bert.pad_token_id, bert.eos_token_id) == (0, None)
    # A padding token that the text has too is not told to the model, whose embedding would not learn it.
    llama_config = tiny_config("llama")
    llama = resolve_model_config(llama_config, TOKENIZER)
    assert (llama.bos_token_id, llama.eos_token_id, llama.pad_token_id) == (0, 0, None)
    assert build_model(llama_config, llama).get_input_embeddings().padding_idx is None


# --- overrides ------------------------------------------------------------------------------------------------------


def test_common_names_of_sizes_are_understood() -> None:
    model = {"config_overrides": {"num_hidden_layers": 3, "hidden_size": 32, "num_attention_heads": 2}}
    resolved = resolve_model_config(tiny_config("gpt2", model=model), TOKENIZER)
    assert (resolved.n_layer, resolved.n_embd, resolved.n_head) == (3, 32, 2)


def test_sizes_that_follow_from_others_follow_the_overrides() -> None:
    config = tiny_config("llama", model={"config_overrides": {"hidden_size": 64, "num_attention_heads": 2}})
    assert resolve_model_config(config, TOKENIZER).head_dim == 32


def test_unknown_override_names_the_nearest() -> None:
    model = {"config_overrides": {"n_layers": 2, "hidden_dropout": 0.1}}
    error = _refused(r"n_layers is not a key of a gpt2 configuration; did you mean n_layer\?", model=model)
    assert len(error.problems) == 2


@pytest.mark.parametrize(
    ("override", "key"),
    [({"attn_implementation": "eager"}, "model.attn_implementation"), ({"torch_dtype": "bfloat16"}, "precision")],
)
def test_owned_override_names_its_key(override: dict[str, Any], key: str) -> None:
    _refused(rf"is decided by another key; set {key}", model={"config_overrides": override})


def test_override_of_a_wrong_type() -> None:
    model = {"config_overrides": {"n_layer": "six"}}
    _refused(r"model\.config_overrides\.n_layer='six' is refused: .*expected int", model=model)


def test_sizes_that_give_no_model() -> None:
    model = {"config_overrides": {"n_embd": 64, "n_head": 5}}
    _refused(r"model\.config_overrides gives no gpt2 model: .*divisible", model=model)


def test_unknown_architecture() -> None:
    _refused(r"model\.architecture='gpt-2' is not a model type of transformers; did you mean gpt2\?", None, "gpt-2")


# --- positions ------------------------------------------------------------------------------------------------------


def test_learned_positions_end() -> None:
    error = _refused(r"data\.seq_length=65 is beyond the 64 positions of the model", seq_length=65)
    assert "at most 64" in str(error)
    assert "model.config_overrides.n_positions: 65" in str(error)


def test_rotary_positions_follow_the_sequences() -> None:
    config = tiny_config("llama", seq_length=4096, model={"config_overrides": {"hidden_size": 64}})
    assert resolve_model_config(config, TOKENIZER).max_position_embeddings == 4096


def test_rotary_positions_that_were_set_are_kept() -> None:
    model = {"config_overrides": LLAMA_SIZES}
    _refused(r"seq_length=65 .* 64 positions", architecture="llama", seq_length=65, model=model)


def test_positions_of_roberta_start_after_the_padding() -> None:
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "max_position_embeddings": 34}
    model = {"task": "masked_lm", "config_overrides": sizes}
    tokenizer = tiny_tokenizer("bert")  # its padding is 0
    resolve_model_config(tiny_config("roberta", seq_length=33, model=model), tokenizer)
    match = r"seq_length=34 is beyond the 33 positions.*max_position_embeddings: 35"
    _refused(match, tokenizer, "roberta", seq_length=34, model=model)


# --- task and attention ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "task", "match"),
    [
        ("gpt2", "masked_lm", r"does not fit a gpt2 model; set model\.task: causal_lm"),
        ("bert", "causal_lm", r"does not fit a bert model, whose attention sees .* set model\.task: masked_lm"),
        ("t5", "causal_lm", r"does not fit a t5 model"),
        ("bart", "causal_lm", r"does not fit a bart model, which is an encoder with a decoder"),
    ],
)
def test_task_and_architecture_disagree(architecture: str, task: str, match: str) -> None:
    _refused(match, architecture=architecture, model={"task": task, "config_overrides": {}})


def test_bert_as_a_decoder_is_a_causal_model() -> None:
    config = tiny_config("bert", model={"task": "causal_lm", "config_overrides": {"is_decoder": True}})
    assert resolve_model_config(config, TOKENIZER).is_decoder


def test_attention_that_the_model_lacks() -> None:
    model = {"task": "masked_lm", "config_overrides": {"num_hidden_layers": 1}}
    match = r"model\.attn_implementation='sdpa' cannot be used for deberta-v2: .*set it to eager"
    _refused(match, tiny_tokenizer("bert"), "deberta-v2", model=model)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="about machines without a GPU")
def test_attention_that_needs_a_gpu() -> None:
    flex, flash = {"attn_implementation": "flex_attention"}, {"attn_implementation": "flash_attention_2"}
    _refused(r"attn_implementation='flex_attention' needs a GPU", architecture="llama", model=flex)
    _refused(r"'flash_attention_2' cannot be used for gpt2: .*; set it to sdpa or eager", model=flash)


@pytest.mark.parametrize(
    ("architecture", "task", "overrides", "reason"),
    [
        ("mamba", "causal_lm", {"num_hidden_layers": 1, "hidden_size": 32}, "layers without an attention mask"),
        ("llama4_text", "causal_lm", {"num_hidden_layers": 4}, r"without an attention mask \(chunked_attention"),
        ("mobilebert", "masked_lm", {"num_hidden_layers": 1}, "outside of attention"),
        ("bloom", "causal_lm", {"num_hidden_layers": 1, "hidden_size": 32}, "no position_ids"),
        ("fnet", "masked_lm", {"num_hidden_layers": 1, "hidden_size": 32}, "no prepared|not take a prepared"),
    ],
)
def test_models_that_cannot_isolate_documents(
    architecture: str, task: str, overrides: dict[str, Any], reason: str
) -> None:
    model = {"task": task, "config_overrides": overrides, "attn_implementation": "eager"}
    tokenizer = tiny_tokenizer("bert" if task == "masked_lm" else "gpt")
    match = rf"data\.packing\.isolate_documents.*{architecture} model: .*({reason})"
    _refused(match, tokenizer, architecture, model=model)
    config = tiny_config(architecture, model=model, data={"packing": {"isolate_documents": False}})
    resolve_model_config(config, tokenizer)


# --- models with a name ---------------------------------------------------------------------------------------------


def _named(name: str | Path, **model: Any) -> dict[str, Any]:
    return {"architecture": None, "config_overrides": {}, "name_or_path": str(name), **model}


def test_missing_folder(tmp_path: Path) -> None:
    _refused(r"model\.name_or_path='.*gone' is not there; give a folder", model=_named(tmp_path / "gone"))


def test_folder_without_a_model(tmp_path: Path) -> None:
    _refused(r"model\.name_or_path='.*' gives no model; is this the right folder\?", model=_named(tmp_path))


def test_hub_name_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(HubUnreachableError, match=r"model\.name_or_path='nobody/no-such-model'.*folder"):
        resolve_model_config(tiny_config(model=_named("nobody/no-such-model")), TOKENIZER)


def test_code_of_its_own_needs_trust(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "own", "auto_map": {"AutoConfig": "configuration_own.OwnConfig"}}'
    )
    (tmp_path / "configuration_own.py").write_text("raise RuntimeError('was run')")
    _refused(r"comes with code of its own; set model\.trust_remote_code: true", model=_named(tmp_path))


def test_pretrained_keeps_its_vocabulary(saved_model: Path) -> None:
    config = tiny_config(model=_named(saved_model, pad_vocab_to_multiple_of=100))
    assert resolve_model_config(config, TOKENIZER).vocab_size == 128
    scratch = tiny_config(model=_named(saved_model, pad_vocab_to_multiple_of=100, init="scratch"))
    assert resolve_model_config(scratch, TOKENIZER).vocab_size == 100


def test_tokenizer_larger_than_a_pretrained_embedding(saved_model: Path) -> None:
    tokenizer = tiny_tokenizer(vocab_size=130)
    error = _refused(r"has 130 tokens, more than the 128 rows", tokenizer, model=_named(saved_model))
    assert "model.config_overrides.vocab_size: 130" in str(error)


def test_overrides_of_a_saved_model(saved_model: Path) -> None:
    scratch = _named(saved_model, init="scratch", config_overrides={"n_layer": 1})
    assert resolve_model_config(tiny_config(model=scratch), TOKENIZER).n_layer == 1
    _refused(r"did you mean n_layer\?", model=_named(saved_model, config_overrides={"n_layers": 1}))


def test_pretrained_positions_end(saved_model: Path) -> None:
    error = _refused(r"data\.seq_length=65 is beyond the 64 positions", seq_length=65, model=_named(saved_model))
    assert "config_overrides" not in str(error)
