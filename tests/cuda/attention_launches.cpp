// SPDX-License-Identifier: Apache-2.0
#include "cuda/runtime_under_test.hpp"

TERSEKV_TEST_LAUNCH(float);
TERSEKV_TEST_LAUNCH(tersekv::Half);
TERSEKV_TEST_LAUNCH(tersekv::BFloat16);
