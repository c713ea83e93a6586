# SPDX-License-Identifier: Apache-2.0
"""Others' decode attention over the same numbers, in the layout they want. A contestant that cannot
take part raises Skipped with the reason."""
import contextlib
import math

BIG = 1 << 28  # bytes of K and V from which slow ways are not tried
BIAS_LIMIT = 1 << 30


class Skipped(Exception):
    pass


def sdpa_backends(torch, kv_bytes):
    """(name, context manager factory) of each way PyTorch has by name."""
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        return []
    names = ["FLASH_ATTENTION", "CUDNN_ATTENTION", "EFFICIENT_ATTENTION"]
    if kv_bytes <= BIG:
        names.append("MATH")
    backends = []
    for name in names:
        backend = getattr(SDPBackend, name, None)
        if backend is not None:
            backends.append((name.lower(), lambda backend=backend: sdpa_kernel(backend)))
    return backends


def sdpa(torch, q, k, v, bias=None, context=contextlib.nullcontext):
    """q [sequences, q_heads, head_dim]; k, v [sequences, kv_heads, entries, head_dim]."""
    with context():
        return torch.nn.functional.scaled_dot_product_attention(
            q.unsqueeze(2), k, v, attn_mask=bias, enable_gqa=q.shape[1] != k.shape[1]).squeeze(2)


def fastest_sdpa(torch, clock, case, data):
    """(name, function of a copy): the backend that is fastest on these inputs."""
    best, reasons = None, []
    ways = sdpa_backends(torch, case.padded_bytes()) + [("default", contextlib.nullcontext)]
    for name, context in ways:
        if best is not None and name == "default":
            continue  # is one of those before
        def call(copy, context=context):
            return sdpa(torch, data.q[copy], data.k[copy], data.v[copy], context=context)
        try:
            contestant = clock.prepare(lambda: call(0), 1, graph=False)
            us = min(clock.sample({"x": contestant}, ["x"])["x"] for _ in range(5))
        except Exception as error:  # whatever a backend refuses with
            reasons.append(f"{name}: {str(error).strip().splitlines()[0][:80] if str(error) else ''}")
            continue
        if best is None or us < best[0]:
            best = (us, name, call)
    if best is None:
        raise Skipped("no backend takes these inputs: " + "; ".join(reasons))
    return best[1], best[2]


def sdpa_with_bias(torch, case, data):
    """SDPA with the log-weights as a mask to add, as one would do without this library."""
    if case.padded_bytes() > BIAS_LIMIT:
        raise Skipped("only tried up to 1 GiB: the mask takes PyTorch to slower ways")
    if case.mix != "uniform":
        raise Skipped("only tried for equal lengths")
    group = case.q_heads // case.kv_heads
    bias = [w.log().to(data.q[0].dtype).repeat_interleave(group, dim=1).unsqueeze(2)
            for w in data.weights]
    return lambda copy: sdpa(torch, data.q[copy], data.k[copy], data.v[copy], bias[copy])


LOG_WEIGHT_HOOK = ("its run() takes no number per entry; a variant with one would have to be "
                   "written and compiled for it")


def flashinfer(torch, case, data):
    """FlashInfer's decode over pages of 64; lengths of one sequence's heads are equal there."""
    try:
        import flashinfer as library
    except Exception as error:
        raise Skipped(f"not installed ({type(error).__name__})") from error
    if case.mix != "uniform":
        raise Skipped("heads of one sequence cannot have lengths of their own there")
    page = 64
    if case.context % page != 0:
        raise Skipped("context is not whole pages")
    try:
        free, _ = torch.cuda.mem_get_info()
        if free < 1.2 * case.padded_bytes() * len(data.k) + (1 << 28):
            raise Skipped("memory for a third layout")
        pages = case.context // page
        device = data.q[0].device
        indptr = torch.arange(case.batch + 1, dtype=torch.int32, device=device) * pages
        # In random order, as ours.
        order = torch.randperm(case.batch * pages, device=device)
        last = torch.full((case.batch,), page, dtype=torch.int32, device=device)
        wrapper = library.BatchDecodeWithPagedKVCacheWrapper(
            torch.zeros(1 << 27, dtype=torch.uint8, device=device), "HND", use_tensor_cores=True)
        wrapper.plan(indptr, order.to(torch.int32), last, case.q_heads, case.kv_heads,
                     case.head_dim, page, q_data_type=data.q[0].dtype,
                     kv_data_type=data.q[0].dtype)

        def paged(x):  # [sequences, heads, entries, dim] -> [pages, heads, page, dim]
            split = x.view(case.batch, case.kv_heads, pages, page, case.head_dim)
            flat = split.permute(0, 2, 1, 3, 4).reshape(-1, case.kv_heads, page, case.head_dim)
            to = torch.empty_like(flat)
            to[order] = flat
            return to
        caches = [(paged(k), paged(v)) for k, v in zip(data.k, data.v)]
    except Skipped:
        raise
    except Exception as error:
        raise Skipped(f"failed: {type(error).__name__}: {str(error)[:120]}") from error
    return lambda copy: wrapper.run(data.q[copy], caches[copy])


def reference(torch, case, data, copy, sequence, biased):
    """In float, one sequence at a time. [q_heads, head_dim] and the logits [kv_heads, group, n]."""
    k, v = data.k[copy][sequence].float(), data.v[copy][sequence].float()
    q = data.q[copy][sequence].float().view(case.kv_heads, -1, case.head_dim)
    logits = torch.einsum("hgd,hnd->hgn", q, k) / math.sqrt(case.head_dim)
    if biased:
        logits = logits + data.weights[copy][sequence].log().unsqueeze(1)
    first = sequence * case.kv_heads
    lengths = torch.tensor(case.lengths()[first:first + case.kv_heads], device=q.device)
    beyond = torch.arange(k.shape[1], device=q.device) >= lengths.view(-1, 1, 1)
    logits = logits.masked_fill(beyond, float("-inf"))
    out = torch.einsum("hgn,hnd->hgd", torch.softmax(logits, dim=-1), v)
    return out.reshape(case.q_heads, case.head_dim), logits
