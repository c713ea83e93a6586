/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

#include <stdint.h>

/* What is timed side by side with others, for a harness in any language: the machine's own limits,
 * and sets of caches. A set holds copies of one layer's cache, so that a harness can go round more
 * bytes than some level of memory holds. Functions that return a pointer return null where they
 * fail, those that return an int another number than 0, those that return a number a negative one,
 * and `tersekv_peers_error` then says why. Times are seconds on the wall, measured in here. One
 * caller at a time. */

#ifdef __cplusplus
extern "C" {
#endif

const char* tersekv_peers_error(void);
/* Compiler and flags; names, separated by spaces. */
const char* tersekv_peers_build(void);
const char* tersekv_peers_policies(void);
const char* tersekv_peers_elements(void);

/* The machine. */

/* One pass of `threads` threads over `bytes` bytes, each over its own part: the faster of two ways.
 */
double tersekv_peers_read(int64_t bytes, int threads);
/* Floating-point operations per second of `threads` threads that only multiply and add in
 * registers. */
double tersekv_peers_peak(int threads);
/* Eigen's product of two square matrices of floats; -1 where it was built without Eigen. */
double tersekv_peers_product(int64_t size, int threads);

/* Caches. */

/* `copies` equal caches that have seen `tokens` random tokens: chunks of 1024 appended, the last 32
 * queries of each observed, compressed. `budget` <= 0: unlimited. The policy "weighted" keeps all
 * and carries weights, 1 until `weigh`. */
void* tersekv_peers_create(const char* policy, const char* element, int threads, int64_t copies,
                           int64_t q_heads, int64_t kv_heads, int64_t head_dim, int64_t budget,
                           int64_t tokens);
/* As it is now; 0 copies: as many. */
void* tersekv_peers_clone(void* set);
void tersekv_peers_destroy(void* set);

/* Random weights from 0.5 to 8 to all entries of all copies, of a policy that has weights. */
int tersekv_peers_weigh(void* set, uint64_t seed);
int64_t tersekv_peers_length(void* set, int64_t kv_head);
/* Of one copy, in the order of MemoryUsage: keys, values, weights, positions, statistics, slack,
 * bookkeeping, workspace. */
int tersekv_peers_bytes(void* set, int64_t* eight);
/* The query that `attend` uses: [q_heads, head_dim]. */
int tersekv_peers_query(void* set, float* q);
/* A head of a copy: [length, head_dim], [length, head_dim] and [length], in storage order. */
int tersekv_peers_export(void* set, int64_t copy, int64_t kv_head, float* k, float* v,
                         float* weights);
/* Over one KV head's query heads, the largest of: how far a copy's attention is from a double
 * loop's, without attention per entry and with it; how far from 1 a query head that adds up to. */
double tersekv_peers_difference(void* set, int64_t copy);

/* `calls` attentions, round the copies. with_rows != 0: group-reduced attention per entry is
 * written, too. out [q_heads, head_dim] and rows [kv_heads, length of the longest]: of the last
 * call, or null. */
double tersekv_peers_attend(void* set, int64_t calls, int with_rows, float* out, float* rows);
/* `calls` passes over the keys, round the copies: the products of every key with the first of its
 * head, which is what a search for the most similar key takes. products [kv_heads, length of the
 * longest]: of the last call, or null. */
double tersekv_peers_keys(void* set, int64_t calls, float* products);
/* `calls` attentions of the last `queries` tokens, which the first call appends. */
double tersekv_peers_prompt(void* set, int64_t queries, int64_t calls);
/* After prompt: as difference, of its first, one of its middle and its last queries. */
double tersekv_peers_prompt_difference(void* set);
/* `calls` decode steps by the verbs, round the copies: seconds[4 i ..] = append, attend (with rows
 * where the policy wants them), observe, compress of step i. */
int tersekv_peers_steps(void* set, int64_t calls, double* seconds);
/* `calls` decode steps by `extend`, round the copies: seconds[2 i ..] = the whole step; observe and
 * compress within it, on the thread with the most of them. */
int tersekv_peers_extends(void* set, int64_t calls, double* seconds);
/* `calls` decode steps, round the copies: seconds[2 i ..] = attention alone, `extend` of one token.
 */
int tersekv_peers_pairs(void* set, int64_t calls, double* seconds);
/* `calls` tokens by `extend`, round the copies; seconds[i] of each, or null. */
int tersekv_peers_stream(void* set, int64_t calls, double* seconds);

#ifdef __cplusplus
}
#endif
