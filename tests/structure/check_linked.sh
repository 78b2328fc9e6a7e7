#!/usr/bin/env bash
# check_linked.sh [--with-runtime] [--direct] EXECUTABLE PATTERN: fails when EXECUTABLE needs a shared library that matches
# PATTERN, or, without --with-runtime, has the CUDA runtime linked into it statically. With --direct, what its libraries
# need in turn is left out.
set -euo pipefail
runtime=forbidden
if [ "$1" = --with-runtime ]; then
  shift
  runtime=allowed
fi
if [ "$1" = --direct ]; then
  shift
  libraries=$(readelf --dynamic "$1" | grep NEEDED)
else
  libraries=$(ldd "$1")
fi
[ -n "$libraries" ]
if grep -E "$2" <<<"$libraries"; then
  echo "$1 links the libraries above, which it must not need (pattern: $2)" >&2
  exit 1
fi
[ "$runtime" = forbidden ] || exit 0
symbols=$(nm --defined-only "$1")
[ -n "$symbols" ] || { echo "$1 has no symbols to look at; build it without stripping" >&2; exit 1; }
if grep -E ' [tT] (cudaMalloc|cudaLaunchKernel)$' <<<"$symbols"; then
  echo "$1 contains the functions above of the CUDA runtime, which belongs in builds with CUDA, in allot-model, allot-bench and liballot_torch.so" >&2
  exit 1
fi
