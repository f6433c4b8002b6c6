"""Text from a trained model: a causal model continues a prompt, a masked model fills in its mask tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from llmtrain.errors import ConfigError, Problem


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn; `temperature` 0 takes the likeliest."""

    max_new_tokens: int = 64
    temperature: float = 0.8
    top_p: float = 0.95
    seed: int = 42


def generate(folder: Path, prompts: Sequence[str], sampling: Sampling = Sampling()) -> Iterator[str]:
    """One text a prompt: the prompt with its continuation, or with its masks filled in.

    Raises:
        ConfigError: the folder holds no model, or a prompt for a masked model has no mask token.
    """
    model_config = load_folder_config(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    architecture = (model_config.architectures or [""])[0]
    if architecture.endswith("ForMaskedLM"):
        masked = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
        yield from (_fill_masks(masked, tokenizer, prompt) for prompt in prompts)
    else:
        causal = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
        yield from (_continue(causal, tokenizer, prompt, sampling) for prompt in prompts)


def load_folder_config(folder: Path) -> Any:
    """The transformers configuration of a model's folder.

    Raises:
        ConfigError: there is no such folder, or no config.json in it.
    """
    if not (folder / "config.json").is_file():
        raise ConfigError(
            Problem(
                str(folder),
                "is not the folder of a transformers model (no config.json in it)",
                "a run writes one to runs/NAME/final; `llmtrain export CHECKPOINT DIR` makes one of a checkpoint",
            )
        )
    return transformers.AutoConfig.from_pretrained(folder)


@torch.no_grad()
def _continue(model: Any, tokenizer: Any, prompt: str, sampling: Sampling) -> str:
    torch.manual_seed(sampling.seed)
    input_ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False).input_ids
    if input_ids.shape[1] == 0:
        input_ids = torch.tensor([[tokenizer.bos_token_id or tokenizer.eos_token_id]])
    room = getattr(model.config, "max_position_embeddings", None) or input_ids.shape[1] + sampling.max_new_tokens
    drawing = {"do_sample": True, "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": 0}
    output = model.generate(
        input_ids,
        attention_mask=torch.ones_like(input_ids),
        max_new_tokens=max(1, min(sampling.max_new_tokens, room - input_ids.shape[1])),
        pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id,
        **(drawing if sampling.temperature > 0 else {"do_sample": False}),
    )
    return str(tokenizer.decode(output[0], skip_special_tokens=True))


@torch.no_grad()
def _fill_masks(model: Any, tokenizer: Any, prompt: str) -> str:
    if tokenizer.mask_token is None or tokenizer.mask_token not in prompt:
        raise ConfigError(
            Problem(
                "--prompt", f"has no mask token, which a masked model fills in: {tokenizer.mask_token}", value=prompt
            )
        )
    encoded = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    logits = model(**encoded).logits[0, :, : len(tokenizer)]
    is_mask = encoded.input_ids[0] == tokenizer.mask_token_id
    filled = torch.where(is_mask, logits.argmax(-1), encoded.input_ids[0])
    return str(tokenizer.decode(filled, skip_special_tokens=True))
