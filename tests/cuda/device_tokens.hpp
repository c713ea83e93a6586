// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "cuda/runtime_under_test.hpp"
#include "support/random.hpp"

namespace on_device {

/// Random new tokens in device memory, and a place for what attention makes of them.
class Tokens {
 public:
  struct Rows {
    std::vector<float> q, k, v, scores;
  };

  Tokens(support::Random& random, Index count, Index heads, Index group, Index dim)
      : Tokens(
            Rows{random.normals(count * heads * group * dim), random.normals(count * heads * dim),
                 random.normals(count * heads * dim), random.normals(count * heads)},
            count, heads, group, dim) {}

  /// Tokens [first, first + count) by themselves.
  Tokens rows(Index first, Index count) const {
    const auto part = [&](const std::vector<float>& all, Index width) {
      return std::vector<float>(all.begin() + first * width, all.begin() + (first + count) * width);
    };
    return Tokens({part(rows_.q, heads_ * group_ * dim_), part(rows_.k, heads_ * dim_),
                   part(rows_.v, heads_ * dim_), part(rows_.scores, heads_)},
                  count, heads_, group_, dim_);
  }
  /// Scores f(token, head) instead of random ones.
  template <class F>
  void score(F&& f) {
    for (Index t = 0; t < count_; ++t) {
      for (Index h = 0; h < heads_; ++h) {
        rows_.scores[static_cast<std::size_t>(t * heads_ + h)] = f(t, h);
      }
    }
    scores_ = Array<float>(rows_.scores);
  }

  tersekv::cuda::Batch<float> batch(tersekv::cuda::Sequences sequences) const {
    const auto view = [&](const Array<float>& from, Index heads) {
      const float* data = from.data();
      return tersekv::nhd_view(data, count_, heads, dim_);
    };
    tersekv::cuda::Batch<float> b(sequences, view(q_, heads_ * group_), view(k_, heads_),
                                  view(v_, heads_),
                                  tersekv::nhd_view(out_.data(), count_, heads_ * group_, dim_));
    b.token_scores = {scores_.data(), heads_};
    return b;
  }
  std::vector<float> out() const { return out_.host(); }
  const Rows& host_rows() const { return rows_; }

 private:
  Tokens(Rows rows, Index count, Index heads, Index group, Index dim)
      : rows_(std::move(rows)),
        count_(count),
        heads_(heads),
        group_(group),
        dim_(dim),
        q_(rows_.q),
        k_(rows_.k),
        v_(rows_.v),
        scores_(rows_.scores),
        out_(count * heads * group * dim, -7.0f) {}

  Rows rows_;
  Index count_, heads_, group_, dim_;
  Array<float> q_, k_, v_, scores_, out_;
};

}  // namespace on_device
