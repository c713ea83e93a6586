# SPDX-License-Identifier: Apache-2.0
"""Whole engines on one model: decoding and prompts at several contexts, and how much of the full
cache's continuation is left when a tenth of the entries is."""
import importlib.metadata

from contestants import EngineError, Ours, Peer
from timing import alternating

THREADS = 2
KEPT = 10  # percent of the context
POLICIES = ("h2o", "keepkv")  # ours that evict
EVICTING_FROM = 1000  # tokens of context
TOKENS = 48  # generated in a sample
NLL_TOKENS, NLL_TOLERANCE = 257, 0.03  # relative; llama.cpp rounds activations to 8 bits
AGREEMENT_LENGTH, AGREEMENT_TOKENS = 31500, 48  # characters, tokens
CHARACTERS_PER_TOKEN = 6  # enough text for a context


def version_of(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions():
    return {name: version_of(name) for name in ("torch", "llama-cpp-python", "openvino",
                                                "openvino-genai")}


def wanted(arguments):
    """{name: why not} of the peers that cannot take part."""
    left_out = {}
    for peer, package in (("llama.cpp", "llama-cpp-python"), ("openvino", "openvino-genai")):
        if peer not in arguments.peers:
            left_out[peer] = "left out by --peers"
        elif version_of(package) is None:
            left_out[peer] = f"not installed (pip install {package})"
    return left_out


def budget_of(context):
    return context * KEPT // 100


def makers(arguments, context, left_out):
    """{name: function that starts the contestant}."""
    def ours(*more):
        return lambda: Ours(arguments.engine, arguments.model, THREADS, *more)
    model, evicting = arguments.model, context >= EVICTING_FROM
    found = {"ours": ours()}
    if evicting:
        found.update({f"ours_{p}": ours(p, budget_of(context)) for p in POLICIES})
    if "llama.cpp" not in left_out:
        found["llama_cpp"] = lambda: Peer("peer_llama_cpp.py", model, THREADS, "off")
        found["llama_cpp_flash"] = lambda: Peer("peer_llama_cpp.py", model, THREADS, "on")
    if "openvino" not in left_out:
        found["openvino"] = lambda: Peer("peer_openvino.py", model, THREADS, 0)
        if evicting:
            found["openvino_evicting"] = lambda: Peer("peer_openvino.py", model, THREADS,
                                                      budget_of(context))
    return found


class Field:
    """Contestants that are started, and those that could not be."""

    def __init__(self, made):
        self.running, self.skipped = {}, {}
        for name, make in made.items():
            try:
                self.running[name] = make()
            except OSError as error:
                self.skipped[name] = str(error)

    def drop(self, name, error):
        self.skipped[name] = str(error)
        self.running.pop(name).close()

    def ask(self, name, f):
        """f(contestant), or None of one that fails, which then takes no more part."""
        try:
            return f(self.running[name])
        except (EngineError, KeyError) as error:
            self.drop(name, error)
            return None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for one in self.running.values():
            one.close()


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def measure(bench, arguments, context, left_out):
    """A prompt and the tokens after it, all contestants in turns: two results."""
    text = read(arguments.text)[:context * CHARACTERS_PER_TOKEN]
    rounds = min(bench.plan.least, 3)
    with Field(makers(arguments, context, left_out)) as field:
        decode, prompt, bytes_held, parts = {}, {}, {}, []
        for name in list(field.running):  # verified, and warm
            field.ask(name, lambda one: one.sample(text, min(context, 100), 2))
        for index in range(rounds):
            for name in alternating(list(field.running), index):
                sample = field.ask(name, lambda one: one.sample(text, context, TOKENS))
                if sample is None:
                    continue
                decode.setdefault(name, []).append(1e6 * sample["token_seconds"])
                prompt.setdefault(name, []).append(1e6 * sample["prompt_seconds"] / context)
                bytes_held[name] = sample["bytes"]
                if name == "ours":
                    parts.append(sample["parts"])
        common = {"context": context, "threads": THREADS, "budget": budget_of(context),
                  "skipped": {**left_out, **field.skipped}}
        return [{"case": f"decode at {context}", "kind": "decode", **common, "bytes": bytes_held,
                 "parts_of_ours_ms": parts, "samples_us": complete(decode, rounds)},
                {"case": f"prompt of {context}", "kind": "prompt", **common,
                 "samples_us": complete(prompt, rounds)}]


def complete(samples, rounds):
    """Those who took part in all rounds."""
    return {name: us for name, us in samples.items() if len(us) == rounds}


def words_in_common(one, other):
    """Leading words that two continuations share, over those of the first."""
    a, b = one.split(), other.split()
    same = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return same / max(len(a), 1)


def verify(arguments, left_out):
    """The same model everywhere: how far others' likelihood of a text is from ours, relative; None of who
    failed at it. Who is too far off, or was not checked, is timed all the same, and the table says so."""
    text = read(arguments.text)[:8 * NLL_TOKENS]
    expected = Ours(arguments.engine, arguments.model, THREADS).nll(text, NLL_TOKENS)
    errors = {}
    made = makers(arguments, 100, left_out)
    made.pop("ours")
    with Field(made) as field:
        for name in list(field.running):
            nll = field.ask(name, lambda one: one.nll(text, NLL_TOKENS))
            errors[name] = None if nll is None else abs(nll / expected - 1)
        skipped = {**left_out, **field.skipped}
    return {"case": "the same model", "kind": "verified", "errors": errors, "skipped": skipped,
            "wrong": [name for name, error in errors.items()
                      if error is not None and not error <= NLL_TOLERANCE],
            "samples_us": {}}


def passages(text, count):
    """`count` passages spread over the text, which do not overlap, each ending with a whole word."""
    if len(text) < count * AGREEMENT_LENGTH:
        raise EngineError(f"{count} passages of {AGREEMENT_LENGTH} characters: the text has {len(text)}")
    apart = (len(text) - AGREEMENT_LENGTH) // max(1, count - 1)
    return [text[i * apart:i * apart + AGREEMENT_LENGTH].rsplit(" ", 1)[0] for i in range(count)]


def agreement(bench, arguments, left_out):
    """Leading words of a full cache's continuation that are left at a tenth of the entries; of each
    engine with its own full cache."""
    context = bench.plan.contexts[-1]
    texts = passages(read(arguments.text), bench.plan.texts)
    shares = {}
    pairs = [("ours", f"ours_{p}") for p in POLICIES] + [("openvino", "openvino_evicting")]
    said = {}
    with Field(makers(arguments, context, left_out)) as field:
        for name in list(field.running):
            if name in {n for pair in pairs for n in pair}:
                said[name] = field.ask(name, lambda one: [one.continuation(t, AGREEMENT_TOKENS)
                                                          for t in texts])
        skipped = {**left_out, **field.skipped}
    for full, evicting in pairs:
        if said.get(full) and said.get(evicting):
            shares[evicting] = [words_in_common(a, b) for a, b in zip(said[full], said[evicting])]
    return {"case": f"agreement at about {context}", "kind": "agreement", "context": context,
            "budget": budget_of(context), "texts": len(texts), "skipped": skipped,
            "agreement": {name: sum(each) / len(each) for name, each in shares.items()},
            "samples_us": {}}


def work(bench, arguments):
    """[(section, name, function)]."""
    left_out = wanted(arguments)
    found = [("engine", "the same model", lambda: verify(arguments, left_out))]
    found += [("engine", f"context {n}", lambda n=n: measure(bench, arguments, n, left_out))
              for n in bench.plan.contexts]
    if bench.plan.texts > 0:
        found.append(("engine", "agreement", lambda: agreement(bench, arguments, left_out)))
    return found
