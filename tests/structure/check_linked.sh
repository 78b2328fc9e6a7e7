#!/usr/bin/env bash
# check_linked.sh EXECUTABLE PATTERN: fails when EXECUTABLE needs a shared library that matches PATTERN.
set -euo pipefail
libraries=$(ldd "$1")
if grep -E "$2" <<<"$libraries"; then
  echo "$1 links the libraries above, which the light tool must not need" >&2
  exit 1
fi
[ -n "$libraries" ]
