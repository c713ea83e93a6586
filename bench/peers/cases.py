# SPDX-License-Identifier: Apache-2.0
"""What is measured: shapes, sizes, and how many copies of a cache it takes."""
import dataclasses

ELEMENT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1}
# Query heads, KV heads, head_dim.
SMALL, LARGE, UNGROUPED, TINY = (9, 3, 64), (32, 8, 128), (32, 32, 128), (4, 2, 64)
BEYOND_CACHES = 4  # times the last level, for what is to come from memory
CONTESTANTS_BYTES = 9  # times one's, of all: three sets of ours, PyTorch's (of int8 twice as much), buffers
ROUND_BYTES = 64 << 20  # what a round over an engine's layers goes through, at least
MOST_COPIES = 32
POLICIES = ("full", "streaming_llm", "h2o", "tova", "snapkv", "morphkv", "weightedkv", "zsmerge",
            "keepkv", "keepkv_pair", "kvzap")
UNBOUNDED = ("full", "snapkv", "kvzap")  # grow while decoding


@dataclasses.dataclass(frozen=True)
class Case:
    q_heads: int
    kv_heads: int
    head_dim: int
    element: str
    entries: int
    threads: int = 1
    policy: str = "full"

    @property
    def shape(self):
        return f"{self.q_heads}/{self.kv_heads}/{self.head_dim}"

    @property
    def name(self):
        return f"{self.shape} {self.element} {self.entries} x{self.threads}"

    @property
    def policy_name(self):
        return f"{self.policy} {self.name}"

    def kv_bytes(self):
        """Of K and V; int8 has a scale for each of them."""
        element = ELEMENT_BYTES[self.element] * self.head_dim + (4 if self.element == "int8" else 0)
        return 2 * self.kv_heads * self.entries * element

    def flops(self):
        """Of one token's two products."""
        return 4 * self.q_heads * self.head_dim * self.entries

    def prompt_flops(self, queries):
        """Of `queries` tokens, the last of which sees all entries."""
        visible = queries * self.entries - queries * (queries - 1) // 2
        return 4 * self.q_heads * self.head_dim * visible


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much is measured."""
    seconds: float  # of a case, about
    least: int  # rounds
    shapes: tuple
    levels: dict  # entries: where they come from
    elements: tuple
    steps: tuple  # (shape, entries)
    overhead: tuple  # shape, entries
    stream: tuple  # shape, budget
    marks: tuple  # tokens of the stream
    queries: int  # of a prompt's chunk
    prompts: tuple  # (shape, entries)
    contexts: tuple  # of the engines
    texts: int  # whose continuations are compared


FULL = Plan(1.0, 7, (LARGE, UNGROUPED, SMALL), {512: "L2", 4096: "L3", 32768: "memory"},
            ("float32", "float16", "bfloat16", "int8"),
            ((SMALL, 512), (SMALL, 4096), (SMALL, 32768), (LARGE, 4096)), (SMALL, 512), (SMALL, 512),
            tuple(1 << power for power in range(10, 21, 2)), 512,
            ((SMALL, 4096), (SMALL, 16384), (SMALL, 32768), (LARGE, 4096)), (100, 1000, 4000, 7900),
            8)
QUICK = Plan(0.3, 3, (LARGE, SMALL), {512: "L2", 32768: "memory"}, ("float32", "bfloat16"),
             ((SMALL, 512),), (SMALL, 512), (SMALL, 512), (1 << 10, 1 << 12, 1 << 14), 512,
             ((SMALL, 4096),), (100, 1000), 0)
# For the tests: the whole way in seconds; what it measures means nothing.
REHEARSAL = Plan(0.0, 2, (TINY,), {64: "L2", 200: "memory"}, ("float32", "int8"),
                 ((TINY, 96), (TINY, 130)), (TINY, 80), (TINY, 64), (100, 200), 16, ((TINY, 100),),
                 (20,), 0)


def copies_beyond(plan, case, last_level, free_memory):
    """(copies, why fewer than wanted or None): of what must come from memory all together hold several
    times the last level, as far as there is room for every contestant's."""
    if plan.levels[case.entries] != "memory":
        return 1, None
    wanted = max(1, -(-BEYOND_CACHES * last_level // case.kv_bytes()))
    room = int(free_memory / CONTESTANTS_BYTES / case.kv_bytes())
    if wanted <= room:
        return wanted, None
    return max(1, room), f"memory for {max(1, room)} of {wanted} copies"


def copies_of_engine(case):
    """As many layers as an engine goes through before it comes back to one."""
    return max(1, min(MOST_COPIES, -(-ROUND_BYTES // case.kv_bytes())))


def attention_cases(plan, elements, threads):
    return [Case(*shape, element, entries, count) for entries in plan.levels
            for shape in plan.shapes for element in plan.elements if element in elements
            for count in threads]


def policy_cases(plan, policies, threads):
    return [Case(*shape, "bfloat16", entries, count, policy) for policy in POLICIES
            if policy in policies for shape, entries in plan.steps for count in threads]


def overhead_cases(plan, policies, elements, threads):
    shape, entries = plan.overhead
    return [Case(*shape, element, entries, count, policy) for policy in POLICIES
            if policy in policies for element in (elements if policy == "full" else ("bfloat16",))
            for count in threads]


def streaming_cases(plan, policies):
    shape, budget = plan.stream
    return [Case(*shape, "bfloat16", budget, 1, policy) for policy in POLICIES
            if policy in policies and policy not in UNBOUNDED]


def prompt_cases(plan, elements, threads):
    return [Case(*shape, element, entries, count) for shape, entries in plan.prompts
            for element in ("float32", "bfloat16") if element in elements for count in threads]
