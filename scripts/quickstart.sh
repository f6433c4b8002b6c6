#!/usr/bin/env bash
# From a fresh clone to a trained, evaluated and exported model: ./scripts/quickstart.sh (GPT) or ./scripts/quickstart.sh bert.
# Makes .venv when it is missing. Further arguments are overrides: ./scripts/quickstart.sh schedule.max_steps=50
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

config=configs/quickstart.yaml task=causal_lm tokenizer=sample-data/tokenizer vocab_size=4096
if [ "${1:-}" = bert ]; then
    shift
    config=configs/quickstart_bert.yaml task=masked_lm tokenizer=sample-data/tokenizer-bert vocab_size=8192
fi

scripts/setup_venv.sh
export PATH="$PWD/.venv/bin:$PATH"

llmtrain sample-data sample-data
if [ ! -e "$tokenizer/tokenizer.json" ]; then
    llmtrain tokenizer train --files sample-data/train.jsonl --out "$tokenizer" --vocab-size "$vocab_size" --task "$task"
fi

launch=()
if ! nvidia-smi --list-gpus >/dev/null 2>&1; then
    # Two processes on the CPU. One without bf16 instructions multiplies in bf16 about nine times slower than in fp32.
    launch=(--num_gpus 2)
    if ! grep -q -s -E 'amx_bf16|avx512_bf16' /proc/cpuinfo; then
        echo "This CPU has no bf16 instructions: training in fp32 instead (precision=fp32)."
        set -- precision=fp32 "$@"
    fi
fi

name=$(basename "$config" .yaml)
deepspeed "${launch[@]}" scripts/train.py --config "$config" run.overwrite=true "$@"
if [ "$task" = causal_lm ]; then
    llmtrain generate "runs/$name/final" --prompt "def main("
else
    llmtrain generate "runs/$name/final" --prompt "import [MASK]"
fi
