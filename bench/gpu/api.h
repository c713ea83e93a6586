/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdint.h>

/* What the benchmarks on a GPU time, for a harness in any language: sets of caches in device
 * memory. A set holds several copies of one cache, so that a harness can go round them and find
 * none in the L2. Functions that return a pointer return null where they fail, those that return
 * int another number than 0, and `tersekv_bench_error` then says why. `stream` is a cudaStream_t.
 * Work on it is asynchronous, and what does not say otherwise can be captured in a graph. dtype:
 * "half" or "bfloat16". */

#ifdef __cplusplus
extern "C" {
#endif

const char* tersekv_bench_error(void);

/* Keeps the device busy while the host queues what is to be timed. */
int tersekv_bench_spin(int64_t turns, void* stream);

/* Attention of one query a sequence over random entries with random weights; lengths[sequence *
 * kv_heads + kv_head]. Pages lie in memory in random order. Synchronises. */
void* tersekv_bench_attention_create(const char* dtype, int64_t copies, int64_t sequences,
                                     int64_t q_heads, int64_t kv_heads, int64_t head_dim,
                                     const int64_t* lengths, uint64_t seed, void* stream);
void tersekv_bench_attention_destroy(void* set);
/* q and out: [sequences, q_heads, head_dim]. mode: a sum of 1 (log-weights of the entries as bias),
 * 2 (logits for a policy) and 4 (with 2: attention per entry too, summed over the group). */
int tersekv_bench_attention_run(void* set, int64_t copy, const void* q, void* out, int mode,
                                void* stream);
/* Reads the bytes of all keys and values, and does nothing else. */
int tersekv_bench_attention_probe(void* set, int64_t copy, int64_t blocks_per_multiprocessor,
                                  void* stream);
/* The sum of the 32-bit words that the probe reads, or -1. Synchronises. */
int64_t tersekv_bench_attention_probe_sum(void* set, int64_t copy, void* stream);
/* Keys and values as [sequences, kv_heads, padded, head_dim], weights as [sequences, kv_heads,
 * padded]; zeros, and weights of 1, where a head has no entry. */
int tersekv_bench_attention_export(void* set, int64_t copy, void* k, void* v, float* weights,
                                   int64_t padded, void* stream);
/* What the latest run with mode 2 (what = 0) or 6 (what = 1) left behind for a head (of query head
 * `member` of its group), to the host's memory. Synchronises. */
int tersekv_bench_attention_scores(void* set, int what, int64_t head, int64_t member, float* to,
                                   int64_t count, void* stream);
/* Of one copy: what = 0: keys and values of live entries, 1: what the probe reads, 2: all device
 * memory of the set. */
int64_t tersekv_bench_attention_bytes(void* set, int what);

/* Caches with a policy at its defaults, keys and values of random tokens. `budget` entries per KV
 * head, for policies that have one; heads hold at most `room` entries. Synchronises. */
void* tersekv_bench_policy_create(const char* policy, const char* dtype, int64_t copies,
                                  int64_t sequences, int64_t q_heads, int64_t kv_heads,
                                  int64_t head_dim, int64_t budget, int64_t room, void* stream);
void tersekv_bench_policy_destroy(void* set);
/* Appends `tokens` random tokens to every sequence of every copy. */
int tersekv_bench_policy_fill(void* set, int64_t tokens, uint64_t seed, void* stream);
/* Other random numbers for the tokens of the next steps. */
int tersekv_bench_policy_refresh(void* set, uint64_t seed, void* stream);
/* Attention alone, of the query of the next step. */
int tersekv_bench_policy_attend(void* set, int64_t copy, void* stream);
/* `count` decode steps, one token a sequence each, of copies first, first + 1, ..., round and
 * round. */
int tersekv_bench_policy_steps(void* set, int64_t first, int64_t count, void* stream);
/* The same with policies on a stream of their own, so that the policy of one copy and the next
 * copy's append and attention are at work together; both are done before what follows on `stream`.
 */
int tersekv_bench_policy_steps_apart(void* set, int64_t first, int64_t count, void* stream,
                                     void* policies);
/* Waits, learns the true lengths, and fails if a head found no page. */
int tersekv_bench_policy_synchronize(void* set, void* stream);
/* As of the latest synchronize; -1 for a bad index. */
int64_t tersekv_bench_policy_length(void* set, int64_t copy, int64_t sequence, int64_t kv_head);
/* Of the first copy: what = 0: all but the workspace, 1: its workspace. */
int64_t tersekv_bench_policy_bytes(void* set, int what);
/* Names that `policy_create` knows, separated by spaces. */
const char* tersekv_bench_policies(void);

#ifdef __cplusplus
}
#endif
