"""Our nemotron_h against transformers' (torch), float32, random models without a trivial tensor."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlx_dspark.checkpoint.target_config import read_target_config
from mlx_dspark.checkpoint.weights import Weights
from mlx_dspark.models.nemotron_h import NemotronH

torch = pytest.importorskip("torch")

LAYERS = ["mamba", "moe", "mamba", "attention", "moe", "mamba", "moe", "attention", "moe", "mamba"]
FIELDS = {
    "vocab_size": 257, "hidden_size": 64, "max_position_embeddings": 512, "intermediate_size": 96,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16, "attention_bias": False,
    "mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 32, "n_groups": 4, "conv_kernel": 4,
    "chunk_size": 16, "use_conv_bias": True, "mamba_proj_bias": False, "use_bias": False, "mlp_bias": False,
    "n_routed_experts": 16, "num_experts_per_tok": 3, "n_shared_experts": 1, "moe_intermediate_size": 48,
    "moe_shared_expert_intermediate_size": 80, "routed_scaling_factor": 2.5, "norm_topk_prob": True, "n_group": 1,
    "topk_group": 1, "moe_latent_size": None, "layer_norm_epsilon": 1e-5, "tie_word_embeddings": False,
    "time_step_min": 1e-30,
}  # fmt: skip


def reference(folder: Path, seed: int, **over: object):
    """A torch model with every parameter random, saved by transformers itself into `folder`."""
    from transformers import NemotronHConfig, NemotronHForCausalLM

    torch.manual_seed(seed)
    model = NemotronHForCausalLM(NemotronHConfig(layers_block_type=LAYERS, **{**FIELDS, **over})).eval().float()
    spread = {"dt_bias": (1.0, -2.0), "A_log": (0.5, 0.5), "D": (0.3, 1.0), "e_score_correction_bias": (0.2, 0.0)}
    with torch.no_grad():
        for name, p in [*model.named_parameters(), *model.named_buffers()]:
            leaf = name.rsplit(".", 1)[-1]
            if leaf in spread:
                scale, middle = spread[leaf]
            elif "norm" in name and p.ndim == 1:
                scale, middle = 0.2, 1.0
            elif leaf == "bias":
                scale, middle = 0.1, 0.0
            else:
                scale, middle = (0.4 if "conv1d" in name else 1 / np.sqrt(p.shape[-1])), 0.0
            p.copy_(torch.randn(p.shape) * scale + middle)
    model.save_pretrained(folder)
    return model


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "over",
    [{}, {"moe_latent_size": 32}, {"n_group": 4, "topk_group": 2}, {"use_bias": True, "mlp_bias": True}],
    ids=["plain", "latent", "groups", "biases"],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_logits_equal_transformers(tmp_path: Path, seed: int, over: dict) -> None:
    model = reference(tmp_path, seed, **over)
    config = read_target_config(tmp_path)
    assert config.pattern == "MEM*EME*EM"
    target = NemotronH.load(config, Weights(tmp_path, None, mx.float32))
    ids = np.random.default_rng(seed).integers(0, 257, 45)
    with torch.no_grad():
        out = model(input_ids=torch.tensor(ids[None]), output_hidden_states=True, use_cache=False)
    expected = out.logits[0].numpy()
    for sizes in ([45], [1] * 45, [21, *[4] * 6], [23, *[8] * 2, 6]):
        state, rows, begin = target.new_state(), [], 0
        for size in sizes:
            rows.append(target.verify(state, [mx.array(ids[begin : begin + size], mx.int32)], (0, 4)).logits)
            begin += size
        assert np.abs(np.array(mx.concatenate(rows)) - expected).max() < 5e-5
    taps = target.prefill(target.new_state(), 0, ids.tolist(), (0, 3, 8))
    for layer, rows in taps.items():
        assert np.abs(np.array(rows) - out.hidden_states[layer + 1][0].numpy()).max() < 5e-5
