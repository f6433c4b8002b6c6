"""Tokenizers: training, loading, framing, batches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from tokenizers import Tokenizer, processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from llmtrain.config.schema import Config
from llmtrain.data.packing import DocumentFraming
from llmtrain.data.tokenizer import BatchTokenizer, find_framing, load_tokenizer, tokenizer_digest
from llmtrain.data.tokenizer_training import train_tokenizer
from llmtrain.errors import BadRecordError, ConfigError, HubUnreachableError
from tests.unit.data.support import EOS, byte_tokenizer, make_config, write_json_lines

TEXTS = ["the quick brown fox jumps over the lazy dog\n", "Größe, naïve, 東京", "  def f(x):\n\treturn x\n"] * 20


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tokenizers")
    write_json_lines(folder / "text.jsonl", TEXTS)
    files = [folder / "text.jsonl"]
    return {
        "causal_lm": train_tokenizer(files, folder / "gpt", 300, "causal_lm"),
        "masked_lm": train_tokenizer(files, folder / "bert", 300, "masked_lm"),
    }


def config_with(tokenizer: Any, task: str = "causal_lm", **data: Any) -> Config:
    config = make_config([{"path": "json", "data_files": "x"}], task=task, **data)
    return config.model_copy(update={"tokenizer": config.tokenizer.model_copy(update={"name_or_path": tokenizer})})


def test_trained_tokenizers_load_and_give_texts_back(folders: dict[str, Path]) -> None:
    for task, folder in folders.items():
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert len(tokenizer) == 300
        for text in TEXTS[:3]:
            assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text
        assert find_framing(tokenizer, "causal_lm" if task == "causal_lm" else "masked_lm").num_tokens in (1, 2)
    gpt = AutoTokenizer.from_pretrained(folders["causal_lm"])
    assert gpt.eos_token_id == gpt.bos_token_id == gpt.pad_token_id == 0
    assert gpt("the")["input_ids"] == gpt("the", add_special_tokens=False)["input_ids"]
    bert = AutoTokenizer.from_pretrained(folders["masked_lm"])
    assert bert.convert_ids_to_tokens([0, 1, 2, 3, 4]) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert bert("a", "b")["token_type_ids"] == [0, 0, 0, 1, 1]
    assert bert.decode(bert("the [MASK]", add_special_tokens=False)["input_ids"]) == "the[MASK]"


def test_training_is_deterministic(folders: dict[str, Path], tmp_path: Path) -> None:
    again = train_tokenizer([folders["causal_lm"].parent / "text.jsonl"], tmp_path, 300, "causal_lm")
    assert (again / "tokenizer.json").read_bytes() == (folders["causal_lm"] / "tokenizer.json").read_bytes()


def test_training_refuses_what_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        train_tokenizer([tmp_path / "no.jsonl"], tmp_path, 260, "masked_lm")
    assert "--files" in str(caught.value)
    assert "--vocab-size=260 is too small: the bytes and the special tokens alone are 261" in str(caught.value)
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n{"text": 1}\n')
    with pytest.raises(BadRecordError, match=r"a\.jsonl: line 2: "):
        train_tokenizer([tmp_path / "a.jsonl"], tmp_path, 300, "causal_lm")


def with_frame(single: str) -> Any:
    """A tokenizer that adds tokens itself, as `single` says."""
    plain = byte_tokenizer(bos_token="<s>", cls_token="[CLS]", sep_token="[SEP]")
    backend = Tokenizer.from_str(plain.backend_tokenizer.to_str())
    names = ("<|end|>", "<s>", "[CLS]", "[SEP]")
    backend.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=[(name, backend.token_to_id(name)) for name in names]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|end|>", bos_token="<s>", cls_token="[CLS]", sep_token="[SEP]"
    )


def test_each_document_ends_in_exactly_one_eos() -> None:
    bos, cls, sep = 257, 258, 259
    assert find_framing(with_frame("$A"), "causal_lm") == DocumentFraming((), (EOS,))
    assert find_framing(with_frame("$A <|end|>"), "causal_lm") == DocumentFraming((), (EOS,))
    assert find_framing(with_frame("<s> $A"), "causal_lm") == DocumentFraming((bos,), (EOS,))
    assert find_framing(with_frame("<s> $A <|end|>"), "causal_lm") == DocumentFraming((bos,), (EOS,))
    assert find_framing(with_frame("[CLS] $A [SEP]"), "masked_lm") == DocumentFraming((cls,), (sep,), each_part=True)
    assert find_framing(with_frame("$A"), "masked_lm") == DocumentFraming((cls,), (sep,), each_part=True)
    assert find_framing(byte_tokenizer(), "masked_lm") == DocumentFraming((), (EOS,), each_part=True)
    tokenize = BatchTokenizer(byte_tokenizer(), EOS)
    assert [tokens.tolist() for tokens in tokenize(["a<|end|><|end|>", "<|end|>", "<|end|>a"])] == [[65], [], [0, 65]]


def test_batches_are_neither_cut_nor_padded() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.backend_tokenizer.enable_truncation(3)
    tokenizer.backend_tokenizer.enable_padding()
    digest = tokenizer_digest(tokenizer)
    lengths = [len(tokens) for tokens in BatchTokenizer(tokenizer, EOS)(["x" * 10, "", "yy"])]
    assert lengths == [10, 0, 2]
    assert tokenizer.backend_tokenizer.truncation is not None
    assert digest == tokenizer_digest(byte_tokenizer()) != tokenizer_digest(with_frame("$A"))


def test_loading_says_what_is_wrong(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpt, bert = str(folders["causal_lm"]), str(folders["masked_lm"])
    assert len(load_tokenizer(config_with(gpt))) == 300
    assert len(load_tokenizer(config_with(bert, "causal_lm", packing=False))) == 300
    for config, message in [
        (config_with(None), "tokenizer.name_or_path is needed where model.name_or_path is not set"),
        (config_with(str(tmp_path / "no")), "is no folder"),
        (config_with(f"{gpt}/tokenizer.json"), f"is a file; name its folder: {gpt}"),
        (config_with(str(tmp_path)), "holds no tokenizer that can be loaded"),
    ]:
        with pytest.raises(ConfigError) as caught:
            load_tokenizer(config)
        assert message in str(caught.value)
        assert not isinstance(caught.value, HubUnreachableError)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubUnreachableError) as unreachable:
        load_tokenizer(config_with("no-such/tokenizer"))
    assert "HF_HUB_OFFLINE is set" in str(unreachable.value)
    assert "there is no folder no-such/tokenizer either" in str(unreachable.value)


def test_saved_settings_are_those_of_the_task(folders: dict[str, Path]) -> None:
    settings = json.loads((folders["masked_lm"] / "tokenizer_config.json").read_text())
    assert settings["mask_token"] == "[MASK]"
    assert "token_type_ids" in settings["model_input_names"]
