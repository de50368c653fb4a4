"""Which numerics rounds where (design D2): the three methods sets on the same random inputs."""

from __future__ import annotations

import pytest
import torch

from deodar.model import attention, compressor, quant
from deodar.model.layers import rms_norm
from deodar.model.numerics import numerics

X = torch.randn(6, 96, generator=torch.Generator().manual_seed(1))
W = torch.randn(32, 96, generator=torch.Generator().manual_seed(2)).bfloat16().float()
STORED = {
    "window_key": quant.fp8_round,
    "main_entry": quant.entry_round,
    "index_key": quant.index_round,
}


@pytest.mark.parametrize("name", ["golden", "kv"])
def test_activations_stay_fp32(name: str) -> None:
    n = numerics(name)
    assert torch.equal(n.bf16(X), X)
    assert torch.equal(n.index_query(X), X)
    assert torch.equal(n.linear8(X, W), torch.nn.functional.linear(X, W))
    assert torch.equal(n.linear16(X, W), torch.nn.functional.linear(X, W))


def test_faithful_rounds_activations() -> None:
    n = numerics("faithful")
    assert torch.equal(n.bf16(X), X.bfloat16().float())
    assert torch.equal(n.index_query(X), quant.index_round(X))
    rounded = torch.nn.functional.linear(quant.fp8_round(X), W)
    assert torch.equal(n.linear8(X, W), rounded.bfloat16().float())
    plain = torch.nn.functional.linear(X, W)
    assert torch.equal(n.linear16(X, W), plain.bfloat16().float())
    assert not torch.equal(rounded, plain)


@pytest.mark.parametrize("method", STORED)
def test_what_is_kept_is_rounded_except_in_golden(method: str) -> None:
    assert torch.equal(getattr(numerics("golden"), method)(X), X)
    for name in ("kv", "faithful"):
        assert torch.equal(getattr(numerics(name), method)(X), STORED[method](X))


def test_norm_rounds_once_and_keeps_zeros() -> None:
    weight = torch.linspace(0.5, 1.5, 96)
    exact = weight * (X / X.square().mean(-1, keepdim=True).sqrt())
    torch.testing.assert_close(rms_norm(X, weight, 1e-20, numerics("golden")), exact)
    half = rms_norm(X, weight, 1e-20, numerics("faithful"))
    torch.testing.assert_close(half, exact.bfloat16().float(), rtol=2**-7, atol=0)
    assert torch.equal(half.bfloat16().float(), half)
    assert rms_norm(torch.zeros(1, 96), weight, 1e-20, numerics("golden")).abs().max() == 0


def test_faithful_attention_rounds_weights_for_the_value_product_only() -> None:
    """Two equal keys of value 1: weights 1 and 1 sum exactly; the sink stays unrounded."""
    q, keys = torch.zeros(1, 1, 32), torch.ones(1, 2, 32)
    sink = torch.tensor([0.3])
    o = attention.attend(q, keys, torch.ones(1, 2).bool(), sink, numerics("faithful"))
    expected = (torch.tensor(2.0) / (2.0 + sink.exp())).bfloat16().float()
    assert torch.equal(o[0, 0], expected.expand(32))


def test_pairs_pool_by_channel_and_wait_for_their_partner(golden) -> None:  # type: ignore[no-untyped-def]
    config, w = golden.config, golden.blocks[2].compressor
    x = torch.randn(5, config.hidden_size, generator=torch.Generator().manual_seed(3))
    n = numerics("golden")
    whole, left = compressor.latents(x, None, w, config, n)
    assert whole.shape == (2, config.head_dim)
    a, g = x @ w.wkv.T, x @ w.wgate.T
    share = torch.sigmoid(g[0] - g[1])
    pooled = share * a[0] + (1 - share) * a[1]
    expected = rms_norm(pooled[None], w.norm, config.rms_norm_eps, n)
    torch.testing.assert_close(whole[:1], expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(left[0], a[4:])
    first, waiting = compressor.latents(x[:1], None, w, config, n)
    assert first.shape[0] == 0
    second, none = compressor.latents(x[1:2], waiting, w, config, n)
    assert none is None
    torch.testing.assert_close(second, whole[:1], atol=1e-5, rtol=1e-5)
