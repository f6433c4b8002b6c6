"""Floating-point operations of training, and how much of a device's peak a run reaches (MFU). Pure.

FLOPs per token of forward and backward, as in PaLM (Chowdhery et al. 2022, appendix B) and llm-foundry's benchmarks:

    6 N + 12 L d s

N counts the parameters that take part in a matrix product for each token (2 FLOPs forward, 4 backward); L layers whose
attention is d wide in all its heads together; s tokens of context. Causal masks and document boundaries are not
subtracted, and recomputation (gradient checkpointing) is not added: it is no part of the model's FLOPs.

Sources differ in N. llm-foundry counts every parameter. Here tables that are only looked up (positions, segments, an
input embedding that is not also the head) count nothing, and a tied table counts once, for the head; this gives at most
what llm-foundry would report (MPT-125M: 1.0 % less).
"""

from __future__ import annotations

TERA = 1e12

PEAK_TERAFLOPS: tuple[tuple[str, dict[str, float]], ...] = (
    # Dense tensor-core rates as in the makers' data sheets, without sparsity; fp32 without TF32, which torch does not
    # use by itself. The first name that is part of the device's name counts, so the more specific ones come first.
    # NVIDIA Blackwell (HGX B200 data sheet, per GPU)
    ("B200", {"bf16": 2250.0, "fp16": 2250.0, "fp32": 75.0}),
    # NVIDIA H200 and H100 data sheets: SXM, NVL, PCIe (half of the sheets' figures "with sparsity")
    ("H200 NVL", {"bf16": 835.5, "fp16": 835.5, "fp32": 60.0}),
    ("H200", {"bf16": 989.4, "fp16": 989.4, "fp32": 67.0}),
    ("H100 NVL", {"bf16": 835.5, "fp16": 835.5, "fp32": 60.0}),
    ("H100 PCIe", {"bf16": 756.5, "fp16": 756.5, "fp32": 51.0}),
    ("H100", {"bf16": 989.4, "fp16": 989.4, "fp32": 67.0}),
    # NVIDIA A100 data sheet, the same for PCIe and SXM, 40 and 80 GB
    ("A100", {"bf16": 312.0, "fp16": 312.0, "fp32": 19.5}),
    # NVIDIA L40S data sheet
    ("L40S", {"bf16": 362.05, "fp16": 362.05, "fp32": 91.6}),
    # NVIDIA Ada architecture white paper, table 2: 16-bit products accumulated in fp32, as torch does
    ("RTX 4090", {"bf16": 165.2, "fp16": 165.2, "fp32": 82.6}),
    # NVIDIA V100 data sheet; no bf16 tensor cores. PCIe first: torch calls it "Tesla V100-PCIE-16GB".
    ("V100-PCIE", {"fp16": 112.0, "fp32": 14.0}),
    ("V100", {"fp16": 125.0, "fp32": 15.7}),
    # AMD Instinct MI300X data sheet
    ("MI300X", {"bf16": 1307.4, "fp16": 1307.4, "fp32": 163.4}),
)


def flops_per_token(num_matmul_parameters: int, num_layers: int, attention_width: int, seq_length: int) -> int:
    """FLOPs of forward and backward for one token: 6 N + 12 L d s.

    Args:
        num_matmul_parameters: N, see the module's docstring.
        attention_width: d, heads x size of a head (the hidden size, in most models).
    """
    return 6 * num_matmul_parameters + 12 * num_layers * attention_width * seq_length


def peak_flops(device_name: str, dtype: str) -> float | None:
    """The peak rate of a device in FLOP/s, None where it is not known.

    Args:
        device_name: as `torch.cuda.get_device_name` gives it.
        dtype: `precision`: fp32, bf16 or fp16.
    """
    for name, teraflops in PEAK_TERAFLOPS:
        if name.lower() in device_name.lower():
            return teraflops[dtype] * TERA if dtype in teraflops else None
    return None


def model_flops_utilization(
    tokens_per_second: float, flops_per_token: float, peak_flops: float | None, num_devices: int = 1
) -> float | None:
    """The share of the devices' peak that goes into the model's FLOPs (0 to 1), None where the peak is not known.

    Args:
        tokens_per_second: of all devices together.
        peak_flops: of one device, FLOP/s.
    """
    if not peak_flops:
        return None
    return tokens_per_second * flops_per_token / (peak_flops * num_devices)
