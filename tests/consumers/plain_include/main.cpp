// SPDX-License-Identifier: Apache-2.0
// Two files of one program include the library: every function in a header must be inline.
#include "../main.cpp"
