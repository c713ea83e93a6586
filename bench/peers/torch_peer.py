# SPDX-License-Identifier: Apache-2.0
"""PyTorch's attention over the numbers that a set of caches holds, in the layout PyTorch wants."""
import os

TOLERANCE = {"float32": 1e-4, "float16": 5e-3, "bfloat16": 2e-2, "int8": 2e-2}  # relative, of a vector


class Wrong(RuntimeError):
    """A result that is not the one expected."""


def torch_or_none():
    """(torch, why not)."""
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # large pages, as ours and what is read have
    try:
        import torch
        return torch, None
    except Exception as error:  # not installed, or broken
        return None, f"not installed ({str(error).splitlines()[0][:100]})"


class Copies:
    """K and V as [1, kv_heads, entries, head_dim] and log-weights, of every copy of a set."""

    def __init__(self, torch, caches, copies):
        self.torch, case = torch, caches.case
        self.case = case
        # Nothing of PyTorch's attends to int8; it gets the same numbers as bfloat16.
        self.dtype = {"float32": torch.float32, "float16": torch.float16}.get(case.element,
                                                                         torch.bfloat16)
        heads = (1, case.kv_heads, case.entries, case.head_dim)
        k, v = (torch.empty(heads, dtype=self.dtype) for _ in range(2))
        weights = torch.empty(heads[1:3])
        for h in range(case.kv_heads):
            of_head = caches.export(0, h)
            for into, numbers in zip((k[0, h], v[0, h], weights[h]), of_head):
                into.copy_(torch.frombuffer(numbers, dtype=torch.float32).view(into.shape))
        group = case.q_heads // case.kv_heads
        self.bias = weights.log().to(self.dtype)
        self.mask = self.bias.repeat_interleave(group, 0).view(1, case.q_heads, 1, case.entries)
        self.weights = weights
        self.k, self.v = [k] + [k.clone() for _ in range(copies - 1)], [v]
        self.v += [v.clone() for _ in range(copies - 1)]
        self.q32 = torch.frombuffer(caches.query(), dtype=torch.float32).view(case.q_heads,
                                                                              case.head_dim)
        self.q = self.q32.to(self.dtype).view(1, case.q_heads, 1, case.head_dim)
        self.next = 0

    def turn(self):
        self.next = (self.next + 1) % len(self.k)
        return self.k[self.next], self.v[self.next]

    def sdpa(self, mask=None):
        k, v = self.turn()
        return self.torch.nn.functional.scaled_dot_product_attention(
            self.q, k, v, attn_mask=mask, enable_gqa=self.case.q_heads != self.case.kv_heads)

    def sdpa_bias(self):
        return self.sdpa(self.mask)

    def products(self):
        """What a policy needs: the output, and attention per entry summed over the group."""
        k, v = self.turn()
        case = self.case
        q = self.q.view(case.kv_heads, -1, case.head_dim)
        logits = self.torch.matmul(q, k[0].transpose(1, 2)) * case.head_dim**-0.5
        attention = self.torch.softmax(logits + self.bias.unsqueeze(1), dim=-1)
        return self.torch.matmul(attention, v[0]), attention.sum(1)

    def bytes(self):
        """Of one copy: K, V and log-weights."""
        return sum(t.numel() * t.element_size() for t in (self.k[0], self.v[0], self.bias))

    def reference(self, biased):
        """(out, rows) in double."""
        torch, case = self.torch, self.case
        q = self.q32.double().view(case.kv_heads, -1, case.head_dim)
        logits = q @ self.k[0][0].double().transpose(1, 2) * case.head_dim**-0.5
        if biased:
            logits += self.weights.double().log().unsqueeze(1)
        attention = torch.softmax(logits, dim=-1)
        return attention @ self.v[0][0].double(), attention.sum(1)


def far(torch, got, expected):
    """The length of the difference over that of what was expected."""
    got, expected = got.double().flatten(), expected.double().flatten()
    return float((got - expected).norm() / expected.norm())


def verify(name, error, tolerance):
    if not error <= tolerance:  # NaN, too
        raise Wrong(f"{name}: off by {error:.3g}, allowed {tolerance:g}")
    return error
