# SPDX-License-Identifier: Apache-2.0
"""OpenVINO GenAI: peer_openvino.py MODEL THREADS ENTRIES, which it evicts down to; 0: keeps all."""
import sys
import time

import openvino
import openvino_genai

from peer_process import cut, serve

BLOCK = 32  # entries that are evicted at once
CACHE_GB = 1
PIECE = 4096  # characters that are made tokens at once
PROMPT = 8192  # tokens of a prompt that are fed at once: all


def scheduler(entries):
    config = openvino_genai.SchedulerConfig()
    config.enable_prefix_caching = False
    config.max_num_batched_tokens = PROMPT
    config.cache_size = CACHE_GB
    if entries > 0:
        blocks = max(entries // BLOCK, 4)
        start, recent = 1, max(blocks // 4, 1)
        config.use_cache_eviction = True
        config.cache_eviction_config = openvino_genai.CacheEvictionConfig(
            start * BLOCK, recent * BLOCK, blocks * BLOCK,
            openvino_genai.AggregationMode.NORM_SUM)
    return config


class Engine:
    def __init__(self, model, threads, entries):
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(
            model, scheduler(entries), "CPU", {"INFERENCE_NUM_THREADS": threads})
        self.tokenizer = self.pipeline.get_tokenizer()
        self.requests = 0

    def tokens(self, text):
        """Piece by piece, as a long text would silently lose its beginning; between a letter and a
        space, where no token goes across."""
        tokens = []
        while text:
            end = PIECE
            while end < len(text) and not (text[end] == " " and text[end - 1].isalpha()):
                end += 1
            piece = self.tokenizer.encode(text[:end], add_special_tokens=False)
            tokens += [int(token) for token in piece.input_ids.data[0]]
            text = text[end:]
        return tokens

    def run(self, request):
        """A prompt of `context` tokens and `count` more, greedily, each in a step of the pipeline; the
        first step is the prompt and the first token."""
        tokens = openvino.Tensor([cut(self.tokens(request["text"]), request["context"])])
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos = request["count"] + 1, True
        self.requests += 1
        handle = self.pipeline.add_request(self.requests, tokens, config)
        seconds, held = [], 0
        while self.pipeline.has_non_finished_requests():
            start = time.perf_counter()
            self.pipeline.step()
            seconds.append(time.perf_counter() - start)
            metrics = self.pipeline.get_metrics()
            if self.pipeline.has_non_finished_requests():  # in the end all is given back
                held = metrics.cache_usage / 100 * metrics.kv_cache_size_in_bytes
        chosen = handle.read_all()[0].generated_ids
        return {"prompt_seconds": seconds[0], "token_seconds": seconds[1:],
                "text": self.tokenizer.decode(chosen[:-1]), "bytes": int(held)}

    def nll(self, request):
        """Mean negative log-likelihood of the text's tokens after the first."""
        tokens = cut(self.tokens(request["text"]), request["context"])
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.echo, config.logprobs = 1, True, 1
        self.requests += 1
        handle = self.pipeline.add_request(self.requests, openvino.Tensor([tokens]), config)
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
        return {"nll": -sum(handle.read_all()[0].generated_log_probs[1:len(tokens)]) /
                (len(tokens) - 1)}


if __name__ == "__main__":
    engine = Engine(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    serve({"run": engine.run, "nll": engine.nll})
