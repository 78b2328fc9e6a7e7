// What stands between ALLOT_BEGIN_TARGET("avx2,fma") and ALLOT_END_TARGET is compiled for these instructions,
// with gcc and with clang.
#pragma once

#define ALLOT_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define ALLOT_BEGIN_TARGET(features) \
  ALLOT_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define ALLOT_END_TARGET _Pragma("clang attribute pop")
#else
#define ALLOT_BEGIN_TARGET(features) _Pragma("GCC push_options") ALLOT_PRAGMA(GCC target(features))
#define ALLOT_END_TARGET _Pragma("GCC pop_options")
#endif
