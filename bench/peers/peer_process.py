# SPDX-License-Identifier: Apache-2.0
"""The process of an engine: JSON requests on stdin, a line each, an answer to each on stdout. A request
is {"op": NAME, ...}; an answer has "error" where it failed. What the engine prints goes to stderr."""
import json
import os
import sys


def serve(operations):
    """operations: {NAME: function of the request that returns the answer}."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = operations[request["op"]](request)
        except Exception as error:  # the harness decides what that means
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def cut(tokens, count):
    """The first `count` of them; 0: all."""
    if count == 0:
        return tokens
    if len(tokens) < count:
        raise ValueError(f"text: expected {count} tokens, got {len(tokens)}")
    return tokens[:count]
