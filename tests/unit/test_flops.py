"""FLOPs per token and MFU against published tables."""

from __future__ import annotations

import pytest

from llmtrain.flops import flops_per_token, model_flops_utilization, peak_flops

# llm-foundry, scripts/train/benchmarking/README.md: layers, width, parameters, sequence, device, tokens/s per device,
# "Model TFLOP" (FLOP/s per device), MFU in percent. Its N counts every parameter.
LLM_FOUNDRY = [
    (12, 768, 125_311_488, 2048, "NVIDIA A100-SXM4-80GB", 142_830, 1.397395e14, 44.79),
    (12, 768, 124_131_840, 512, "NVIDIA A100-SXM4-80GB", 165_681, 1.327798e14, 42.56),
    (24, 2048, 1_315_950_592, 2048, "NVIDIA H100 80GB HBM3", 45_455, 4.138134e14, 41.82),
    (32, 4096, 6_658_859_008, 2048, "NVIDIA H100 80GB HBM3", 10_643, 4.595096e14, 46.44),
    (40, 5120, 12_853_954_560, 2048, "NVIDIA H100 80GB HBM3", 4_792, 3.937055e14, 39.79),
]


@pytest.mark.parametrize("row", LLM_FOUNDRY)
def test_llm_foundry_table(row: tuple[int, int, int, int, str, int, float, float]) -> None:
    layers, width, num_parameters, seq_length, device, tokens_per_second, flops_per_second, percent = row
    per_token = flops_per_token(num_parameters, layers, width, seq_length)
    # Their tokens/s are rounded to whole ones.
    assert per_token * tokens_per_second == pytest.approx(flops_per_second, rel=2e-4)
    utilization = model_flops_utilization(tokens_per_second, per_token, peak_flops(device, "bf16"))
    assert utilization is not None
    assert 100 * utilization == pytest.approx(percent, abs=0.02)


def test_utilization_is_that_of_all_devices() -> None:
    assert model_flops_utilization(1000.0, 1e9, 1e12, num_devices=4) == 0.25


@pytest.mark.parametrize(
    ("device", "dtype", "teraflops"),
    [
        ("NVIDIA H200", "bf16", 989.4),
        ("NVIDIA H200 NVL", "bf16", 835.5),
        ("NVIDIA H100 PCIe", "fp16", 756.5),
        ("NVIDIA B200", "bf16", 2250.0),
        ("NVIDIA L40S", "bf16", 362.05),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2),
        ("Tesla V100-SXM2-32GB", "fp16", 125.0),
        ("Tesla V100-PCIE-16GB", "fp16", 112.0),
        ("AMD Instinct MI300X", "bf16", 1307.4),
        ("NVIDIA A100-PCIE-40GB", "fp32", 19.5),
    ],
)
def test_peak_by_device_and_precision(device: str, dtype: str, teraflops: float) -> None:
    assert peak_flops(device, dtype) == teraflops * 1e12


@pytest.mark.parametrize(("device", "dtype"), [("AMD EPYC 9654", "bf16"), ("Tesla V100-SXM2-32GB", "bf16")])
def test_unknown_peak_gives_no_utilization(device: str, dtype: str) -> None:
    assert peak_flops(device, dtype) is None
    assert model_flops_utilization(1000.0, 1e9, peak_flops(device, dtype)) is None
