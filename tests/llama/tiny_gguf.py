# SPDX-License-Identifier: Apache-2.0
"""Files small enough to be made on the spot: a random Llama model with a byte-level tokenizer, and
surrogates for it."""

import json
import random
import struct

VOCAB, EMBEDDING, LAYERS, Q_HEADS, KV_HEADS, HEAD_DIM, FEED_FORWARD = 259, 32, 2, 4, 2, 8, 48
U32, F32, BOOL, STRING, ARRAY, I32 = 4, 6, 7, 8, 9, 5


def _string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _byte_names():
    """The printable stand-ins by which byte-level BPE writes the 256 bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names, extra = [], 0
    for byte in range(256):
        if byte not in shown:
            names.append(chr(256 + extra))
            extra += 1
        else:
            names.append(chr(byte))
    return names


def model_bytes(seed=1, layers=LAYERS, chat=None):
    """A whole GGUF file; `chat`: of a chat model, True for one that wants a BOS first."""
    draw = random.Random(seed)
    values, tensors, content = [], [], b""

    def value(key, kind, data):
        values.append(_string(key) + struct.pack("<I", kind) + data)

    def strings(key, texts):
        value(key, ARRAY, struct.pack("<IQ", STRING, len(texts)) + b"".join(map(_string, texts)))

    def tensor(name, shape, mean, deviation):
        nonlocal content
        count = 1
        for extent in shape:
            count *= extent
        content += b"\0" * (-len(content) % 32)
        tensors.append(_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0,
                                                   len(content)))
        content += struct.pack(f"<{count}f", *(draw.gauss(mean, deviation) for _ in range(count)))

    value("general.architecture", STRING, _string("llama"))
    for key, number in {"block_count": layers, "context_length": 512,
                        "embedding_length": EMBEDDING, "feed_forward_length": FEED_FORWARD,
                        "attention.head_count": Q_HEADS,
                        "attention.head_count_kv": KV_HEADS}.items():
        value("llama." + key, U32, struct.pack("<I", number))
    value("llama.attention.layer_norm_rms_epsilon", F32, struct.pack("<f", 1e-5))
    value("tokenizer.ggml.model", STRING, _string("gpt2"))
    value("tokenizer.ggml.pre", STRING, _string("smollm"))
    tokens = _byte_names() + ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    strings("tokenizer.ggml.tokens", tokens)
    types = [1] * 256 + [3] * 3
    value("tokenizer.ggml.token_type", ARRAY,
          struct.pack(f"<IQ{VOCAB}i", I32, VOCAB, *types))
    strings("tokenizer.ggml.merges", [])
    value("tokenizer.ggml.bos_token_id", U32, struct.pack("<I", 257))
    value("tokenizer.ggml.eos_token_id", U32, struct.pack("<I", 258))
    if chat is not None:
        value("tokenizer.chat_template", STRING, _string("{{bos_token}}<|im_start|>"))
        value("tokenizer.ggml.add_bos_token", BOOL, struct.pack("<B", chat))

    tensor("token_embd.weight", (EMBEDDING, VOCAB), 0, 1)
    tensor("output_norm.weight", (EMBEDDING,), 1, 0.1)
    for i in range(layers):
        for name, rows, cols in (("attn_q", Q_HEADS * HEAD_DIM, EMBEDDING),
                                 ("attn_k", KV_HEADS * HEAD_DIM, EMBEDDING),
                                 ("attn_v", KV_HEADS * HEAD_DIM, EMBEDDING),
                                 ("attn_output", EMBEDDING, Q_HEADS * HEAD_DIM),
                                 ("ffn_gate", FEED_FORWARD, EMBEDDING),
                                 ("ffn_up", FEED_FORWARD, EMBEDDING),
                                 ("ffn_down", EMBEDDING, FEED_FORWARD)):
            tensor(f"blk.{i}.{name}.weight", (cols, rows), 0, 0.3)
        tensor(f"blk.{i}.attn_norm.weight", (EMBEDDING,), 1, 0.1)
        tensor(f"blk.{i}.ffn_norm.weight", (EMBEDDING,), 1, 0.1)

    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    head += b"".join(values) + b"".join(tensors)
    return head + b"\0" * (-len(head) % 32) + content


def surrogate_bytes(layers=LAYERS, seed=2):
    """Linear surrogates, as safetensors."""
    draw = random.Random(seed)
    header, content = {}, b""
    for i in range(layers):
        for name, shape in ((f"layers.{i}.weight", [KV_HEADS, EMBEDDING]),
                            (f"layers.{i}.bias", [KV_HEADS])):
            count = shape[0] * (shape[1] if len(shape) > 1 else 1)
            data = struct.pack(f"<{count}f", *(draw.gauss(0, 1) for _ in range(count)))
            header[name] = {"dtype": "F32", "shape": shape,
                            "data_offsets": [len(content), len(content) + len(data)]}
            content += data
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content
