# Sourced by ./quickstart and ./check: what this machine has of CUDA.

# The compiler's path; fails where there is none.
find_nvcc() { PATH="$PATH:/usr/local/cuda/bin" command -v nvcc; }

# The GPUs' names on a line; fails where the driver sees none.
find_gpus() {
  local names
  names=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null) && [ -n "$names" ] && paste -sd, <<<"$names"
}
