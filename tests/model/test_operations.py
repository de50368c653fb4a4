"""Operation goldens of model.md 10.2 and the identities of 10.1 that concern one operation.

Identity -> test (the rest: whole-model ones in test_golden.py and test_identities.py; inventory,
primes and hashes in tests/checkpoint; batch invariance, 19, in tests/engine):

    6, 7   test_sinkhorn_converges, test_uniform_mixes        12  test_attention_*
    9      test_comb_carries_first_index_into_second          15  test_router_*
    10     test_rope_*                                        4, 11, 20  test_quant.py
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from running import close

from deodar.config import V4_1_FLASH, ModelConfig, RopeScaling
from deodar.model import hyper, indexer, layers, rope
from deodar.model.attention import attend
from deodar.model.cpu_weights import rotations
from deodar.model.engram import gate
from deodar.model.frequencies import plain_frequencies, yarn_frequencies
from deodar.model.hyper import HyperWeights, Mixes
from deodar.model.moe import route
from deodar.model.numerics import numerics
from deodar.model.reference import Reference

GOLDEN = numerics("golden")
RELEASED_YARN = RopeScaling(
    factor=16.0, beta_fast=32.0, beta_slow=1.0, original_max_position_embeddings=65536
)
RELEASED_TABLE = [
    1, 6.87656045e-1, 4.72870797e-1, 3.25172454e-1, 2.23606795e-1, 1.53764561e-1, 1.05737120e-1,
    7.27107748e-2, 5.00000007e-2, 3.43828015e-2, 2.36435402e-2, 1.62586235e-2, 1.11803403e-2,
    7.68822804e-3, 5.28685655e-3, 3.63553851e-3, 2.26562493e-3, 1.39680132e-3, 8.49689706e-4,
    5.08081983e-4, 2.96977785e-4, 1.68179977e-4, 9.08678412e-5, 4.54442306e-5, 1.95312532e-5,
    5.37231244e-6, 3.69430336e-6, 2.54040970e-6, 1.74692821e-6, 1.20128561e-6, 8.26071300e-7,
    5.68052940e-7,
]  # fmt: skip


@pytest.fixture(scope="module")
def config(golden: Reference) -> ModelConfig:
    return golden.config


def _mix(m: torch.Tensor, config: ModelConfig, scale: float = 1.0) -> Mixes:
    weights = HyperWeights(torch.zeros(24, 1), torch.zeros(24), torch.full((3,), scale))
    return hyper.split_mix(m, weights, config)


def test_hyper_connection_golden(config: ModelConfig) -> None:
    i = torch.arange(24, dtype=torch.float32)
    mix = _mix(((-1) ** i * 0.25 * i)[None], config)
    close(mix.pre[0], [0.5, 0.43782, 0.62246, 0.32082], 1e-5)
    close(mix.post[0], [1.46212, 0.4454, 1.63515, 0.29609], 1e-5)
    expected = [
        [0.02405, 0.47648, 0.02405, 0.47541],
        [0.1358, 0.36447, 0.1358, 0.36393],
        [0.36572, 0.134, 0.36572, 0.13456],
        [0.47443, 0.02503, 0.47443, 0.0261],
    ]
    close(mix.comb[0], expected, 1e-5)
    close(mix.comb[0].sum(0), [1.0] * 4, 2e-5)
    close(mix.comb[0].sum(1), [1.0] * 4, 2e-5)


def test_sinkhorn_converges(config: ModelConfig) -> None:
    logits = torch.randn(4000, 4, 4, generator=torch.Generator().manual_seed(1))
    for deviation, median in ((1.0, 1e-5), (3.0, 1e-3)):
        comb = hyper.sinkhorn(deviation * logits, config.hc_sinkhorn_iters, config.hc_eps)
        assert (comb > 0).all()
        assert (comb.sum(1) - 1).abs().max() < 2e-6
        assert (comb.sum(2) - 1).abs().amax(-1).median() < median


def test_uniform_mixes(config: ModelConfig) -> None:
    mix = _mix(torch.zeros(1, 24), config)
    close(mix.pre, [[0.500001] * 4], 1e-6)
    close(mix.post, [[1.0] * 4], 1e-6)
    close(mix.comb, [[[0.25] * 4] * 4], 1e-6)


def test_mix_ranges(config: ModelConfig) -> None:
    m = torch.randn(1000, 24, generator=torch.Generator().manual_seed(2))
    mix = _mix(m, config, scale=2.0)
    assert mix.pre.min() > 1e-6
    assert mix.pre.max() < 1 + 1e-6
    assert mix.post.min() > 0
    assert mix.post.max() < 2


def test_comb_carries_first_index_into_second() -> None:
    stream = torch.randn(1, 4, 8, generator=torch.Generator().manual_seed(3))
    target = [2, 0, 3, 1]
    comb = torch.zeros(1, 4, 4)
    comb[0, range(4), target] = 1.0
    mix = Mixes(torch.zeros(1, 4), torch.zeros(1, 4), comb)
    written = hyper.write(stream, torch.ones(1, 8), mix, GOLDEN)
    for i, j in enumerate(target):
        assert torch.equal(written[0, j], stream[0, i])


def test_router_golden() -> None:
    z = torch.tensor([[-3, -1, 0, 0.5, 1, 2, 4, 8]])
    bias = torch.tensor([0.9, 0.2, 0, 0, 0, -0.5, -1, -3])
    chosen, weight = route(z, bias, 3, 1.5)
    assert chosen.tolist() == [[0, 4, 6]]
    close(weight[0], [0.09809, 0.50994, 0.89198], 1e-5)


def test_router_bias_moves_the_choice_only() -> None:
    z = torch.randn(500, 16, generator=torch.Generator().manual_seed(4))
    bias = torch.randn(16, generator=torch.Generator().manual_seed(5))
    plain, _ = route(z, torch.zeros(16), 3, 1.5)
    chosen, weight = route(z, bias, 3, 1.5)
    assert (plain != chosen).any()
    close(weight.sum(-1), [1.5] * 500, 1e-5)
    s = torch.nn.functional.softplus(z).sqrt().gather(1, chosen)
    torch.testing.assert_close(weight[:, 1:] * s[:, :1], weight[:, :1] * s[:, 1:])


def test_router_ties_take_the_lowest_id() -> None:
    chosen, _ = route(torch.zeros(1, 16), torch.zeros(16), 3, 1.5)
    assert chosen.tolist() == [[0, 1, 2]]


def test_engram_gate_golden() -> None:
    dots = torch.tensor([-4, -0.25, -1e-8, 0.0, -0.0, 0.25, 1, 4])
    expected = [0.119203, 0.377541, 0.49975, 0.50025, 0.49975, 0.622459, 0.731059, 0.880797]
    close(gate(dots), expected, 1e-6)


def test_rope_released_table() -> None:
    table = torch.from_numpy(yarn_frequencies(160000.0, 64, RELEASED_YARN))
    assert torch.equal(table, torch.tensor(RELEASED_TABLE))  # nine digits tell any fp32 apart
    plain = torch.from_numpy(plain_frequencies(10000.0, 64))
    close(plain[:4], [1, 7.498942e-1, 5.623413e-1, 4.216965e-1], 1e-7)
    close(plain[-1:], [1.333522e-4], 1e-9)


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (1, [(0.5403, 0.84147), (0.99999, 0.00364), (1, 0.0003), (1, 0)]),
        (1000, [(0.56238, 0.82688), (-0.88047, -0.4741), (0.95623, 0.29263), (1, 0.00057)]),
        (
            100000,
            [(-0.99936, 0.03575), (0.64415, -0.7649), (-0.14682, -0.98916), (0.99839, 0.05677)],
        ),
    ],
)
def test_rope_golden(position: int, expected: list[tuple[float, float]]) -> None:
    angle = position * torch.from_numpy(yarn_frequencies(160000.0, 64, RELEASED_YARN))
    pairs = angle[[0, 15, 20, 31]]
    close(torch.stack([pairs.cos(), pairs.sin()], dim=-1), expected, 1e-5)


def test_compiled_model_turns_by_the_same_angles() -> None:
    """At positions near a million one digit of a frequency would be visible (3.4)."""
    positions = torch.tensor([1, 1000, 65535, 1048575])
    cos, sin = rotations(V4_1_FLASH, positions.numpy())
    tables = rope.RopeTables(V4_1_FLASH)
    for number, compressed in enumerate((False, True)):
        expected = tables.at(positions, compressed=compressed)
        close(torch.from_numpy(cos[number]), expected.real.tolist(), 1e-6)
        close(torch.from_numpy(sin[number]), expected.imag.tolist(), 1e-6)


def test_rope_inverse_and_relative_positions(config: ModelConfig) -> None:
    tables, generator = rope.RopeTables(config), torch.Generator().manual_seed(6)
    x = torch.randn(5, 3, config.head_dim, generator=generator)
    at = tables.at(torch.arange(5) * 100, compressed=True)
    turned = rope.rotate(x, at, GOLDEN)
    keep = config.head_dim - config.qk_rope_head_dim
    assert torch.equal(turned[..., :keep], x[..., :keep])
    assert not torch.allclose(turned[1:], x[1:])
    close(rope.rotate(turned, at.conj(), GOLDEN), x.tolist(), 1e-5)
    q, k = torch.randn(2, 1, config.head_dim, generator=generator)

    def score(p: int, j: int) -> torch.Tensor:
        a = tables.at(torch.tensor([p]), compressed=True)
        b = tables.at(torch.tensor([j]), compressed=True)
        return (rope.rotate(q, a, GOLDEN) * rope.rotate(k, b, GOLDEN)).sum()

    torch.testing.assert_close(score(9, 4), score(1009, 1004), atol=1e-3, rtol=0)
    assert (score(9, 4) - score(9, 5)).abs() > 1e-3


def test_attention_one_key_and_no_sink() -> None:
    q, key = torch.randn(1, 2, 8), torch.randn(1, 1, 8)
    o = attend(q, key, torch.tensor([[True]]), torch.full((2,), -torch.inf), GOLDEN)
    close(o[0], key.expand(1, 2, 8)[0].tolist(), 1e-6)


def test_attention_large_sink_and_no_key() -> None:
    q, keys = torch.randn(1, 2, 8), torch.randn(1, 3, 8)
    assert (
        attend(q, keys, torch.ones(1, 3).bool(), torch.full((2,), 200.0), GOLDEN).abs().max() == 0
    )
    assert attend(q, keys, torch.zeros(1, 3).bool(), torch.zeros(2), GOLDEN).abs().max() == 0


def test_attention_repeated_key_counts_twice() -> None:
    q, keys = torch.randn(1, 2, 8), torch.randn(1, 3, 8)
    sink = torch.randn(2)
    seen = torch.ones(1, 4, dtype=torch.bool)
    twice = attend(q, torch.cat([keys, keys[:, :1]], dim=1), seen, sink, GOLDEN)
    s = (q @ keys.transpose(1, 2)) * 8**-0.5
    p = s.exp() * torch.tensor([2.0, 1.0, 1.0])
    expected = p @ keys / (p.sum(-1, keepdim=True) + sink[None, :, None].exp())
    torch.testing.assert_close(twice, expected)


def test_attention_scale_does_not_touch_the_sink() -> None:
    o = attend(
        torch.zeros(1, 1, 8), torch.ones(1, 1, 8), torch.tensor([[True]]), torch.ones(1), GOLDEN
    )
    close(o[0, 0, :1], [1 / (1 + 2.718281828)], 1e-6)


def test_top_k_order_ties_and_padding() -> None:
    scores = torch.tensor([[1.0, 3.0, 3.0, 3.0, 0.0], [0.0, -0.0, 0.0, -1.0, -torch.inf]])
    assert layers.lowest_id_top_k(scores, 2).tolist() == [[1, 2], [0, 1]]
    assert layers.lowest_id_top_k(scores, 6).tolist() == [[0, 1, 2, 3, 4, -1], [0, 1, 2, 3, -1, -1]]
    assert layers.lowest_id_top_k(torch.zeros(2, 0), 3).tolist() == [[-1] * 3] * 2


def test_candidate_blocks_keep_the_newest(config: ModelConfig) -> None:
    small = dataclasses.replace(config, candidate_topk_blocks=2, candidate_block_size=4)
    score = torch.tensor([[9.0, 0, 0, 0, 5, 0, 0, 0, -1, 99, 99, 99], [1.0] * 12])
    seen = indexer.visible(torch.tensor([8, 3]), 12, 1)  # 9 and 4 entries are visible
    blocks = indexer.candidate_blocks(score, seen, small)
    assert blocks.tolist() == [[0, 2], [0, -1]]
    assert indexer.inside(blocks, 12, small).int().tolist() == [
        [1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1],
        [1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0],
    ]
