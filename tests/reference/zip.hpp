// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <vector>

#include "attention.hpp"

namespace reference {

enum class KeyRule { mean, scale, along_query };

/// One side of a merge: the entry that leaves (e) or the one that carries it (c).
struct MergeSide {
  Vector key, value;
  double votes = 1;
  double log_score = 0;  // predicted logit l
  double log_mass = 0;   // ln m; the shares are the softmax of the two (one query head: ln p + l)
};

struct Merged {
  Vector key, value;
  double votes = 0;
  double share_e = 0, share_c = 0;
  double target_logit = 0;  // tau
  double kl = 0;            // KL(shares || votes / P)
};

/// KeepKV's ZIP merge of `e` into `c`. `query` is the current (group mean) query.
inline Merged zip_merge(const MergeSide& e, const MergeSide& c, KeyRule rule, const Vector& query,
                        double scale) {
  Merged merged;
  merged.votes = e.votes + c.votes;
  const double log_mass = log_sum_exp({e.log_mass, c.log_mass});
  merged.share_e = std::exp(e.log_mass - log_mass);
  merged.share_c = std::exp(c.log_mass - log_mass);
  merged.target_logit =
      log_sum_exp({std::log(e.votes) + e.log_score, std::log(c.votes) + c.log_score}) -
      std::log(merged.votes);
  const double vote_share_e = e.votes / merged.votes, vote_share_c = c.votes / merged.votes;
  if (merged.share_e > 0) merged.kl += merged.share_e * std::log(merged.share_e / vote_share_e);
  if (merged.share_c > 0) merged.kl += merged.share_c * std::log(merged.share_c / vote_share_c);

  for (std::size_t x = 0; x < c.value.size(); ++x)
    merged.value.push_back(merged.share_e * e.value[x] + merged.share_c * c.value[x]);
  for (std::size_t x = 0; x < c.key.size(); ++x)
    merged.key.push_back(merged.share_e * e.key[x] + merged.share_c * c.key[x]);

  if (rule == KeyRule::scale) {
    const double mean_logit = merged.share_e * e.log_score + merged.share_c * c.log_score;
    if (std::fabs(mean_logit) < 1e-6 * (1 + std::fabs(merged.target_logit))) {
      for (std::size_t x = 0; x < c.key.size(); ++x) merged.key[x] = (e.key[x] + c.key[x]) / 2;
    } else {
      for (double& component : merged.key) component *= merged.target_logit / mean_logit;
    }
  }
  const double query_norm = dot(query, query);
  if (rule == KeyRule::along_query && query_norm != 0) {
    for (std::size_t x = 0; x < c.key.size(); ++x)
      merged.key[x] -= query[x] * merged.kl / (scale * query_norm);
  }
  return merged;
}

}  // namespace reference
