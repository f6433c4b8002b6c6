"""A byte-level BPE tokenizer trained on one's own text, saved so that `AutoTokenizer` loads it.

Byte-level: every text has tokens, and decoding gives the text back. Special tokens are GPT-2's for causal models (one
token that begins and ends documents and pads) and BERT's for masked ones, which also get BERT's frame round a text.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from llmtrain.config.schema import SourceConfig
from llmtrain.data.readers import reader_of_format
from llmtrain.data.records import TextFormat, UnusableRecord, bad_record_error
from llmtrain.data.sources import Shard
from llmtrain.data.tokenizer import TaskName
from llmtrain.errors import ConfigError, Problem

END_OF_TEXT = "<|endoftext|>"
BERT_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
NUM_BYTES = 256


def train_tokenizer(
    files: Sequence[str | Path], out_dir: str | Path, vocab_size: int, task: TaskName, *, text_column: str = "text"
) -> Path:
    """Train a tokenizer of `vocab_size` tokens (special ones included) and save it; the folder.

    `files` are JSON Lines, or text where their name ends with .txt. The same files give the same tokenizer.

    Raises:
        ConfigError: a file is not there, or the vocabulary is too small.
        BadRecordError: a record holds no text.
    """
    special_tokens = _special_tokens(task)
    problems = [Problem("--files", "does not exist", value=str(file)) for file in files if not os.path.isfile(file)]
    smallest = NUM_BYTES + len(special_tokens)
    if vocab_size < smallest:
        rule = f"is too small: the bytes and the special tokens alone are {smallest}"
        problems.append(Problem("--vocab-size", rule, value=vocab_size))
    if problems:
        raise ConfigError(problems)
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special_tokens,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(_texts(files, text_column), trainer)
    tokenizer = _causal_tokenizer(backend) if task == "causal_lm" else _masked_tokenizer(backend)
    tokenizer.save_pretrained(str(out_dir))
    return Path(out_dir)


def _special_tokens(task: TaskName) -> list[AddedToken]:
    if task == "causal_lm":
        return [AddedToken(END_OF_TEXT, special=True)]
    # A space before the mask belongs to the masked word: byte-level tokens begin with theirs.
    return [AddedToken(token, special=True, lstrip=token == "[MASK]") for token in BERT_TOKENS]


def _texts(files: Sequence[str | Path], text_column: str) -> Iterator[str]:
    text_format = TextFormat.from_config(SourceConfig(path="json", text_column=text_column), "--text-column")
    for number, file in enumerate(files):
        name = str(file)
        reader = reader_of_format("text" if name.endswith(".txt") else "json")
        assert reader is not None
        shard = Shard(0, name, name, os.path.getsize(name), reader, text_format)
        for row in shard.rows(number):
            try:
                text = shard.text(row)
            except UnusableRecord as problem:
                raise bad_record_error(name, row, problem) from None
            if text is not None:
                yield text


def _causal_tokenizer(backend: Tokenizer) -> Any:
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=END_OF_TEXT, eos_token=END_OF_TEXT, pad_token=END_OF_TEXT
    )


def _masked_tokenizer(backend: Tokenizer) -> Any:
    pad, unk, cls, sep, mask = BERT_TOKENS
    backend.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(cls, backend.token_to_id(cls)), (sep, backend.token_to_id(sep))],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=pad,
        unk_token=unk,
        cls_token=cls,
        sep_token=sep,
        mask_token=mask,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
