# SPDX-License-Identifier: Apache-2.0
"""llama.cpp, by its Python bindings: peer_llama_cpp.py MODEL THREADS on|off (flash attention)."""
import math
import sys
import time

import llama_cpp

from peer_process import cut, serve

CONTEXT = 8192
BATCH = 512  # tokens of a prompt that are fed at once


class Engine:
    def __init__(self, model, threads, flash):
        self.llama = llama_cpp.Llama(model, n_ctx=CONTEXT, n_batch=BATCH, n_threads=threads,
                                     n_threads_batch=threads, flash_attn=flash, verbose=False)
        about = self.llama.metadata
        heads = int(about["llama.attention.head_count"])
        head_dim = int(about["llama.embedding_length"]) // heads
        # K and V of a token in half precision, all layers.
        self.entry_bytes = (int(about["llama.block_count"]) * 4 * head_dim *
                            int(about["llama.attention.head_count_kv"]))

    def tokens(self, text, count):
        return cut(self.llama.tokenize(text.encode(), add_bos=False), count)

    def forget(self):
        self.llama.reset()
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.llama.ctx), True)

    def best(self):
        logits = llama_cpp.llama_get_logits_ith(self.llama.ctx, -1)
        return max(range(self.llama.n_vocab()), key=logits.__getitem__)

    def run(self, request):
        """A prompt of `context` tokens and `count` more, greedily. Choosing the token and copying what
        the bindings copy lie outside of the time."""
        tokens = self.tokens(request["text"], request["context"])
        self.forget()
        prompt, token_seconds, chosen = self.feed(tokens), [], []
        for _ in range(request["count"]):
            chosen.append(self.best())
            token_seconds.append(self.feed(chosen[-1:]))
        return {"prompt_seconds": prompt, "token_seconds": token_seconds,
                "text": self.llama.detokenize(chosen).decode(errors="replace"),
                "bytes": CONTEXT * self.entry_bytes}

    def feed(self, tokens):
        """Seconds of llama_decode, batch by batch."""
        seconds = 0
        for first in range(0, len(tokens), BATCH):
            part = tokens[first:first + BATCH]
            at = self.llama.n_tokens
            self.llama._batch.set_batch(batch=part, n_past=at, logits_all=False)
            start = time.perf_counter()
            self.llama._ctx.decode(self.llama._batch)
            llama_cpp.llama_synchronize(self.llama.ctx)
            seconds += time.perf_counter() - start
            self.llama.n_tokens += len(part)
        return seconds

    def nll(self, request):
        """Mean negative log-likelihood of the text's tokens after the first."""
        tokens = self.tokens(request["text"], request["context"])
        self.forget()
        total = 0
        for token, following in zip(tokens, tokens[1:]):
            self.feed([token])
            logits = llama_cpp.llama_get_logits_ith(self.llama.ctx, -1)
            row = logits[:self.llama.n_vocab()]
            top = max(row)
            total += top + math.log(sum(math.exp(x - top) for x in row)) - row[following]
        return {"nll": total / (len(tokens) - 1)}


if __name__ == "__main__":
    engine = Engine(sys.argv[1], int(sys.argv[2]), sys.argv[3] == "on")
    serve({"run": engine.run, "nll": engine.nll})
