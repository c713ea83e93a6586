# SPDX-License-Identifier: Apache-2.0
"""A chunk of a prompt: causal attention of its queries against a long cache, beside a plain product of
matrices and PyTorch."""
import dataclasses

import torch_peer
from attention import OURS_TOLERANCE
from timing import compare, timed

PRODUCT = 1024  # rows and columns of Eigen's matrices


def sdpa_of(bench, case):
    """PyTorch over random numbers of that shape, with the mask that a chunk after a cache needs."""
    torch, queries = bench.torch, bench.plan.queries
    dtype = torch.float32 if case.element == "float32" else torch.bfloat16
    q = torch.randn(1, case.q_heads, queries, case.head_dim).to(dtype)
    k, v = (torch.randn(1, case.kv_heads, case.entries, case.head_dim).to(dtype) for _ in range(2))
    mask = torch.ones(queries, case.entries, dtype=torch.bool).tril(case.entries - queries)
    return lambda: torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, enable_gqa=case.q_heads != case.kv_heads)


def measure(bench, case):
    queries = bench.plan.queries
    with bench.library.caches("full", case, 1, case.entries - queries) as caches:
        caches.prompt(queries, 1)
        error = torch_peer.verify("ours", caches.prompt_difference(), OURS_TOLERANCE)
        contestants = {"ours": lambda calls: caches.prompt(queries, calls)}
        skipped = {}
        if bench.library.product_seconds(64, 1) is None:
            skipped["Eigen"] = "the library was built without it"
        else:
            contestants["product"] = lambda calls: sum(
                bench.library.product_seconds(PRODUCT, case.threads) for _ in range(calls))
        if bench.torch is None:
            skipped["PyTorch"] = bench.why_no_torch
        else:
            bench.torch.set_num_threads(case.threads)
            contestants["sdpa"] = timed(sdpa_of(bench, case))
        samples = compare(contestants, bench.plan.seconds, 1, min(bench.plan.least, 5), sample=0.02)
        return {"case": case.name, **dataclasses.asdict(case), "queries": queries,
                "flops": case.prompt_flops(queries), "product_flops": 2 * PRODUCT**3,
                "kv_bytes": case.kv_bytes(), "bytes": caches.bytes(), "errors": {"ours": error},
                "skipped": skipped, "samples_us": samples}
