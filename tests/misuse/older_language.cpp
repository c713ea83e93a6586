// SPDX-License-Identifier: Apache-2.0
// Before all that an older language makes of the headers, it is said which one they need.
// misuse: -std=c++17
// expect: tersekv: expected C++20 or later: compile with -std=c++20
#include <tersekv/tersekv.hpp>
