# SPDX-License-Identifier: Apache-2.0
"""Engines that read the same GGUF: ours as a program that is run for every sample, others as processes
that stay. Each has sample(text, context, count) -> seconds of the prompt, of a token, and bytes."""
import json
import os
import select
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
PATIENCE = 900  # seconds for an answer
KV_TYPE = "f16"  # of ours, as llama.cpp's


class EngineError(RuntimeError):
    pass


def mean_of_middle_half(seconds):
    """As `tersekv-llama bench` has it."""
    ordered = sorted(seconds)
    middle = ordered[len(ordered) // 4:len(ordered) - len(ordered) // 4]
    return sum(middle) / len(middle)


class Ours:
    """tersekv-llama with a policy; budget 0: none."""

    def __init__(self, program, model, threads, policy="full", budget=0):
        self.program, self.policy = program, policy
        self.flags = ["--model", model, "--threads", str(threads), "--kv-type", KV_TYPE,
                      "--policy", policy, "--json"] + (["--budget", str(budget)] if budget else [])

    def run(self, command, *flags):
        try:
            done = subprocess.run([self.program, command, *self.flags, *flags], capture_output=True,
                                  text=True, check=False, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            raise EngineError(f"{command}: no answer in {PATIENCE} s") from None
        if done.returncode != 0:
            raise EngineError(f"{command}: {done.stderr.strip().splitlines()[-1:]}")
        return json.loads(done.stdout)

    def sample(self, text, context, count):
        del text  # speed does not depend on it, and bench draws its own tokens
        row = self.run("bench", "--contexts", str(context), "--tokens", str(count))["rows"][0]
        return {"prompt_seconds": context / row["prompt_tokens_per_second"],
                "token_seconds": row["milliseconds_per_token"]["total"] / 1e3,
                "bytes": row["cache_bytes"], "parts": row["milliseconds_per_token"]}

    def continuation(self, text, count):
        with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            return self.run("generate", "--prompt-file", file.name, "--max-tokens",
                            str(count))["text"]

    def nll(self, text, context):
        with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            return self.run("perplexity", "--text", file.name, "--context", str(context - 1))["nll"]

    def close(self):
        pass


class Peer:
    """A process that peer_process.py describes."""

    def __init__(self, script, *arguments):
        self.process = subprocess.Popen(
            [sys.executable, "-B", os.path.join(HERE, script), *map(str, arguments)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def ask(self, **request):
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise EngineError("the process has ended") from error
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        line = self.process.stdout.readline() if ready else ""
        if not line:
            raise EngineError("no answer")
        answer = json.loads(line)
        if "error" in answer:
            raise EngineError(answer["error"])
        return answer

    def sample(self, text, context, count):
        answer = self.ask(op="run", text=text, context=context, count=count)
        return {"prompt_seconds": answer["prompt_seconds"], "bytes": answer["bytes"],
                "token_seconds": mean_of_middle_half(answer["token_seconds"])}

    def continuation(self, text, count):
        return self.ask(op="run", text=text, context=0, count=count)["text"]

    def nll(self, text, context):
        return self.ask(op="nll", text=text, context=context)["nll"]

    def close(self):
        try:
            self.process.stdin.close()
        except OSError:  # has ended, with a request half written
            pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
