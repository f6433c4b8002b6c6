"""The tokenizer: loading it, how it frames a document, and tokenizing in batches.

A document's own tokens are made without special tokens and without truncation; what stands round them
(`DocumentFraming`) is found once, by looking at what the tokenizer itself puts round a text. So it does not matter
how a tokenizer is told to add BOS or EOS: each document has what it adds, and exactly one EOS at its end.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from llmtrain.config.schema import Config
from llmtrain.data.packing import DocumentFraming, TokenArray
from llmtrain.errors import ConfigError, HubUnreachableError, Problem
from llmtrain.hub import hub_unreachable_error, why_hub_is_unreachable

TaskName = Literal["causal_lm", "masked_lm"]
PROBE_TEXT = "a b"
"""A text that every tokenizer has tokens for, to see what is put round it."""


def load_tokenizer(config: Config) -> Any:
    """The tokenizer of a run, a transformers tokenizer.

    Raises:
        ConfigError: it is not there, or cannot be loaded.
        HubUnreachableError: it is named by its hub name, is not in the local cache, and the hub is not reached.
    """
    key = "tokenizer.name_or_path" if config.tokenizer.name_or_path else "model.name_or_path"
    name = config.tokenizer.name_or_path or config.model.name_or_path
    if name is None:
        remedy = "a folder or a hub name; `llmtrain tokenizer train` makes one from your own text"
        raise ConfigError(Problem("tokenizer.name_or_path", "is needed where model.name_or_path is not set", remedy))
    return _load(name, key, trust_remote_code=config.model.trust_remote_code)


def find_framing(tokenizer: Any, task: TaskName) -> DocumentFraming:
    """What stands round a document.

    Causal: what the tokenizer puts before a text, and after it exactly one EOS (where the tokenizer has an EOS at all).
    Masked: what it puts round a text; where it puts nothing, its CLS and SEP, or else its EOS, if it has them; and each
    part of a document that is cut without packing is framed.
    """
    body = list(tokenizer(PROBE_TEXT, add_special_tokens=False)["input_ids"])
    whole = list(tokenizer(PROBE_TEXT, add_special_tokens=True)["input_ids"])
    starts = [start for start in range(len(whole) - len(body) + 1) if whole[start : start + len(body)] == body]
    assert starts, f"the tokenizer changes a text's tokens where it adds special ones: {body} and {whole}"
    prefix, suffix = whole[: starts[0]], whole[starts[0] + len(body) :]
    eos: int | None = tokenizer.eos_token_id
    if task == "masked_lm":
        if not prefix and not suffix:
            cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
            has_both = cls is not None and sep is not None
            prefix, suffix = ([cls], [sep]) if has_both else ([], [] if eos is None else [eos])
        return DocumentFraming(tuple(prefix), tuple(suffix), each_part=True)
    if eos is not None:
        suffix = [token for token in suffix if token != eos] + [eos]
    return DocumentFraming(tuple(prefix), tuple(suffix))


class BatchTokenizer:
    """Texts to tokens, without special tokens and without truncation.

    Reaches past transformers to the backend's `encode_batch_fast`, which keeps no offsets; a tokenizer without such a
    backend is called as it is.
    """

    def __init__(self, tokenizer: Any, closing_token: int | None) -> None:
        self._tokenizer = tokenizer
        self._closing_token = closing_token
        self._backend: Tokenizer | None = getattr(tokenizer, "backend_tokenizer", None)
        if self._backend is not None and (self._backend.truncation or self._backend.padding):
            # The caller's tokenizer keeps its settings: they belong to what is exported with the model.
            self._backend = Tokenizer.from_str(self._backend.to_str())
            self._backend.no_truncation()
            self._backend.no_padding()

    def __call__(self, texts: Sequence[str]) -> list[TokenArray]:
        """The tokens of each text, (n,); a closing token that a text ends with is left out (framing adds it)."""
        if not texts:
            return []
        if self._backend is not None:
            lists = [encoding.ids for encoding in self._backend.encode_batch_fast(texts, add_special_tokens=False)]
        else:
            lists = self._tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        return [self._without_closing_token(np.asarray(tokens, dtype=np.int32)) for tokens in lists]

    def _without_closing_token(self, tokens: TokenArray) -> TokenArray:
        end = len(tokens)
        while end and tokens[end - 1] == self._closing_token:
            end -= 1
        return tokens[:end]


def tokenizer_digest(tokenizer: Any) -> str:
    """A digest of all that decides which tokens a text becomes."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    settings = json.loads(backend.to_str()) if backend is not None else {"vocabulary": tokenizer.get_vocab()}
    settings.pop("truncation", None)
    settings.pop("padding", None)
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def _load(name: str, key: str, *, trust_remote_code: bool) -> Any:
    is_folder = os.path.isdir(name)
    _check_path(name, key)
    why_unreachable = None if is_folder else why_hub_is_unreachable()
    try:
        return AutoTokenizer.from_pretrained(
            name, local_files_only=is_folder or why_unreachable is not None, trust_remote_code=trust_remote_code
        )
    except Exception as error:  # noqa: BLE001  (what it raises differs by tokenizer and version)
        if why_unreachable is not None:
            raise _unreachable(name, key, why_unreachable) from None
        where = "" if is_folder else "; there is no folder of that name either"
        reason = " ".join(str(error).split())
        raise ConfigError(
            Problem(key, f"holds no tokenizer that can be loaded ({reason}){where}", value=name)
        ) from error


def _check_path(name: str, key: str) -> None:
    if os.path.isfile(name):
        raise ConfigError(Problem(key, "is a file", f"name its folder: {os.path.dirname(name) or '.'}", value=name))
    looks_like_path = name.startswith(("/", ".", "~")) or name.count("/") > 1 or name.endswith("/")
    if looks_like_path and not os.path.isdir(name):
        raise ConfigError(Problem(key, f"is no folder (the working directory is {os.getcwd()})", value=name))


def _unreachable(name: str, key: str, why: str) -> HubUnreachableError:
    remedy = (
        f"there is no folder {name} either (the working directory is {os.getcwd()}); `llmtrain tokenizer train` makes "
        "one from your own text"
    )
    return hub_unreachable_error(key, name, why, remedy)
