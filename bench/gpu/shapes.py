# SPDX-License-Identifier: Apache-2.0
"""What is measured: shapes, lengths of heads, and how many copies go round. Needs nothing but Python."""
import dataclasses
import random

ELEMENT_BYTES = 2
PAGE = 64
L2_TIMES = 3  # all copies together hold this many times the L2
MOST_COPIES = 512
RESIDUE = 128  # entries of a head that "holds nothing": sinks and a window


@dataclasses.dataclass(frozen=True)
class Case:
    q_heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    context: int
    batch: int
    mix: str = "uniform"

    @property
    def name(self):
        return (f"{self.q_heads}/{self.kv_heads}/{self.head_dim} {self.dtype} "
                f"{self.context} x {self.batch} {self.mix}")

    def lengths(self):
        """Entries of every (sequence, KV head)."""
        heads = self.batch * self.kv_heads
        if self.mix == "uniform":
            return [self.context] * heads
        chance = random.Random(0)
        if self.mix == "zipf":  # each sequence's heads by rank, 1 / rank of the longest
            lengths = []
            for _ in range(self.batch):
                ranks = list(range(1, self.kv_heads + 1))
                chance.shuffle(ranks)
                lengths += [max(self.context // rank, PAGE) for rank in ranks]
            return lengths
        if self.mix == "few":  # a fifth of the heads holds everything
            full = set(chance.sample(range(heads), max(heads // 5, 1)))
            return [self.context if h in full else min(RESIDUE, self.context)
                    for h in range(heads)]
        raise ValueError(f"mix: expected uniform, zipf or few, got {self.mix}")

    def bytes_of_entry(self):
        return 2 * self.head_dim * ELEMENT_BYTES

    def kv_bytes(self):
        return sum(self.lengths()) * self.bytes_of_entry()

    def padded_bytes(self):
        return max(self.lengths()) * self.batch * self.kv_heads * self.bytes_of_entry()

    def scratch_bytes(self):
        """Floats per entry of the longest head: logits of the group, and seven rows beside them."""
        heads = self.batch * self.kv_heads
        return 4 * heads * max(self.lengths()) * (self.q_heads // self.kv_heads + 7)


def copies_for(bytes_of_copy, l2_bytes):
    """Copies that together pass the L2 a few times over."""
    return max(1, min(MOST_COPIES, -(-L2_TIMES * l2_bytes // max(bytes_of_copy, 1))))


def fitting_copies(case, l2_bytes, free_bytes):
    """(copies, why fewer than wanted or None); 0 copies where not even one fits."""
    wanted = copies_for(case.kv_bytes(), l2_bytes)
    # Ours, and a padded one that others and the check read; a tenth stays free.
    each = case.kv_bytes() * 1.05 + case.padded_bytes()
    check = 3 * 4 * max(case.lengths()) * case.kv_heads * case.head_dim  # floats of one sequence
    room = free_bytes * 0.9 - case.scratch_bytes() - check
    fit = int(max(room, 0) // each)
    if fit >= wanted:
        return wanted, None
    return fit, f"memory for {fit} of {wanted} copies"


MAIN = (32, 8, 128)
OTHERS = ((32, 32, 128), (64, 8, 128), (9, 3, 64))
CONTEXTS = (1024, 4096, 8192, 32768, 131072)
BATCHES = (1, 8, 64)
CORNERS = ((1024, 1), (8192, 8), (32768, 8), (8192, 64))


def attention_cases(quick=False):
    """The most telling first, as time may run out."""
    if quick:
        return ([Case(*MAIN, "bfloat16", 8192, 8), Case(*MAIN, "bfloat16", 1024, 1)] +
                [Case(*MAIN, "bfloat16", 32768, 8, mix) for mix in ("zipf", "few")] +
                [Case(*shape, "half", 8192, 8) for shape in OTHERS])
    grid = [Case(*MAIN, "bfloat16", c, b) for c in CONTEXTS for b in BATCHES]
    grid.sort(key=lambda case: not (case.context >= 8192 and case.batch >= 8))
    ragged = [Case(*MAIN, "bfloat16", c, b, mix) for c, b in ((32768, 8), (8192, 8), (32768, 64))
              for mix in ("zipf", "few")]
    ragged += [Case(64, 8, 128, "bfloat16", 32768, 8, mix) for mix in ("zipf", "few")]
    corners = [Case(*shape, dtype, c, b) for c, b in CORNERS
               for dtype in ("bfloat16", "half") for shape in OTHERS]
    corners += [Case(*MAIN, "half", c, b) for c, b in CORNERS]
    return grid[:6] + ragged + grid[6:] + corners


POLICIES = ("full", "streaming_llm", "h2o", "tova", "snapkv", "morphkv", "weightedkv", "zsmerge",
            "keepkv", "kvzap")
UNBOUNDED = ("full", "snapkv", "kvzap")  # grow while decoding


@dataclasses.dataclass(frozen=True)
class StepCase:
    policy: str
    context: int
    batch: int
    q_heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    dtype: str = "bfloat16"

    @property
    def name(self):
        return f"{self.policy} {self.context} x {self.batch}"

    def kv_bytes(self):
        return self.batch * self.kv_heads * self.context * 2 * self.head_dim * ELEMENT_BYTES


def step_cases(quick=False):
    policies = ("full", "h2o", "keepkv") if quick else POLICIES
    return [StepCase(p, 8192, 8) for p in policies]


def graph_cases(quick=False):
    sizes = ((4096, 1),) if quick else ((4096, 1), (8192, 8))
    return [StepCase(p, c, b) for c, b in sizes for p in ("full", "h2o", "keepkv")]


LONG_CONTEXT = 54000
KEEP = (0.05, 0.10)


def budget_policies(quick=False):
    return (("h2o", "keepkv") if quick else tuple(p for p in POLICIES if p not in ("full", "kvzap")))


# For `--rehearse`: the whole way in a few seconds on the host; what it measures means nothing.
REHEARSAL_L2 = 30_000


def rehearsal_attention():
    return [Case(4, 2, 64, "bfloat16", 96, 2), Case(2, 2, 128, "half", 70, 1),
            Case(8, 2, 64, "half", 300, 1, "zipf"), Case(4, 2, 64, "bfloat16", 200, 3, "few")]


def rehearsal_steps(policies):
    return [StepCase(p, 80, 2, 4, 2, 64, "half") for p in policies]
