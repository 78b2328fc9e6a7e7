"""Checks that each folder includes only the folders docs/design.md lets it use, that LibTorch and CUDA headers stay
where they belong, and that nothing is copied or cleared on CUDA's default stream.

    check_includes.py REPOSITORY | --self-test
"""

import pathlib
import re
import sys
import tempfile

# Folder -> folders it may include besides itself. base is open to all. A path with a slash is a folder of its own: files
# under it follow its entry, and an include of it has to be allowed by that name.
ALLOWED = {
    "base": set(),
    "kernels": {"kernels/cpu", "kernels/methods"},
    "kernels/methods": {"kernels", "kernels/cuda"},
    "kernels/cpu": {"kernels", "kernels/methods"},
    "kernels/cuda": {"kernels", "kernels/methods"},
    "kernels/torch": {"kernels"},
    "episode": set(),
    "policy": {"episode"},
    "wire": {"episode"},
    "model": {"episode", "kernels"},
    "evaluation": {"episode", "kernels", "policy", "model"},
    "aggregator": {"episode", "policy", "wire"},
    "worker": {"episode", "wire", "policy", "evaluation", "model", "kernels"},
    "bench": {"kernels", "kernels/cpu", "model", "policy"},
    "bench/aggregator": {"aggregator", "policy", "wire"},
    "app": {"episode", "kernels", "policy", "wire", "model", "evaluation", "aggregator", "worker", "bench", "bench/aggregator"},
}
# evaluation may use these headers of model only: they are torch-free and light.
EVALUATION_MODEL_HEADERS = {"model/tokenizer.h", "model/utf8.h", "model/model_config.h", "model/weight_storage.h"}
# Folders, or single files, that may see the headers of LibTorch and of the CUDA toolkit.
TORCH_FACING = {"model", "kernels/torch", "bench/attention/torch_peers.cc"}
CUDA_FACING = {"model", "kernels/cuda", "kernels/torch", "bench/attention", "bench/rows", "bench/matmul_cuda_bench.cc"}
TORCH = re.compile(r'\s*#\s*include\s*[<"]((?:ATen|c10|torch)/[^>"]*)')
CUDA = re.compile(r'\s*#\s*include\s*[<"]((?:cuda|cub/|thrust/|nv/|cooperative_groups|mma\.h)[^>"]*)')
# Streams of the project do not wait for the default stream, and cudaMemcpy from pageable memory returns before its last
# bytes are on the device.
DEFAULT_STREAM = re.compile(r'\b(cudaMem(?:cpy|set)(?:2D)?)\(')
DEFAULT_STREAM_FREE = {"model", "kernels"}
DEFAULT_STREAM_USER = "model/cuda/cuda_devices.cc"  # tries out a device on which nothing of the process runs yet
LOCAL = re.compile(r'\s*#\s*include\s*"([^"]+)"')
SUFFIXES = {".h", ".cc", ".cu", ".cuh"}


def folder_of(path):
    """The entry of ALLOWED that a repository path falls under, the longest where two do; None without one."""
    names = [name for name in ALLOWED if path.startswith(name + "/")]
    return max(names, key=len, default=None)


def is_under(path, places):
    return any(path == place or path.startswith(place + "/") for place in places)


def line_faults(where, folder, line):
    torch, cuda, local = TORCH.match(line), CUDA.match(line), LOCAL.match(line)
    if torch and not is_under(where, TORCH_FACING):
        yield f"includes {torch[1]}; LibTorch belongs in {', '.join(sorted(TORCH_FACING))}"
    if cuda and not is_under(where, CUDA_FACING):
        yield f"includes {cuda[1]}; CUDA belongs in {', '.join(sorted(CUDA_FACING))}"
    default_stream = DEFAULT_STREAM.search(line)
    if default_stream and is_under(where, DEFAULT_STREAM_FREE) and where != DEFAULT_STREAM_USER:
        yield f"calls {default_stream[1]} on the default stream; use {default_stream[1]}Async on a stream of its own"
    if not local or torch or cuda:
        return
    target = folder_of(local[1])
    if target is None:
        yield f"includes {local[1]}, which is not rooted at the repository"
    elif target not in ALLOWED[folder] | {folder, "base"}:
        yield f"includes {local[1]}; {folder} may include {', '.join(sorted(ALLOWED[folder] | {'base'}))}"
    elif folder == "evaluation" and target == "model" and local[1] not in EVALUATION_MODEL_HEADERS:
        yield f"includes {local[1]}; evaluation may use {', '.join(sorted(EVALUATION_MODEL_HEADERS))}"


def faults(repository):
    for top in sorted({name.split("/")[0] for name in ALLOWED}):
        for path in sorted((repository / top).rglob("*")):
            if path.suffix not in SUFFIXES:
                continue
            where = path.relative_to(repository).as_posix()
            for number, line in enumerate(path.read_text().splitlines(), 1):
                for fault in line_faults(where, folder_of(where), line):
                    yield f"{where}:{number}: {fault}"


def self_test():
    good = {
        "aggregator/a.cc": ["policy/policy.h", "base/error.h"],
        "kernels/attention_cuda.h": ["kernels/attention.h"],
        "kernels/attention_cpu.cc": ["kernels/cpu/launch.h"],
        "kernels/cuda/plan.cc": ["kernels/attention_cuda.h", "kernels/cuda/args.h"],
        "kernels/cuda/launch.cc": ["cuda_runtime.h", "kernels/cuda/plan.h"],
        "kernels/torch/binding.cc": ["ATen/ATen.h", "cuda_runtime_api.h", "kernels/attention_cuda.h"],
        "bench/attention/torch_peers.cc": ["ATen/ATen.h", "bench/attention/pages.h"],
        "bench/attention/memory_kernels.cu": ["cuda_runtime.h"],
        "bench/matmul_cuda_bench.cc": ["cuda_runtime_api.h", "model/cuda/matmul.h"],
        "bench/rows/rows_cuda_bench.cc": ["cuda_runtime_api.h", "kernels/rows_cuda.h"],
        "model/cuda/device_weights.cc": ["check(cudaMemcpyAsync(to, from, 4, cudaMemcpyHostToDevice, stream));"],
    }
    bad = {
        "policy/a.cc": ["aggregator/history.h", "ATen/ATen.h", "b.h"],
        "kernels/attention.h": ["cuda_runtime.h", "kernels/cuda/args.h", "torch/torch.h"],
        "kernels/cpu/decode.h": ["kernels/cuda/stage_order.h"],
        "kernels/cuda/device.cuh": ["torch/library.h", "kernels/cpu/launch.h", "model/engine.h"],
        "kernels/cuda/score.cu": ["c10/core/Device.h"],
        "kernels/torch/binding.cc": ["kernels/cuda/plan.h"],
        "bench/attention/own_launch.cc": ["ATen/ATen.h", "kernels/cuda/plan.h"],
        "bench/generate.cc": ["cuda_runtime.h"],
        "app/main.cc": ["cuda_bf16.h", "kernels/cuda/plan.h"],
        "model/cuda/decoder.cc": ["check(cudaMemcpy(to, from, 4, cudaMemcpyHostToDevice));"],
    }

    def found_in(files):
        with tempfile.TemporaryDirectory() as folder:
            for name, includes in files.items():
                path = pathlib.Path(folder) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("".join(line if line.endswith(";") else f'#include "{line}"\n' for line in includes))
            return [fault.rsplit(":", 1)[0] for fault in faults(pathlib.Path(folder))]

    assert found_in(good) == [], found_in(good)
    expected = sorted(f"{name}:{number}" for name, includes in bad.items() for number in range(1, len(includes) + 1))
    found = sorted(":".join(place.split(":")[:2]) for place in found_in(bad))
    assert found == expected, (found, expected)


def main():
    if sys.argv[1] == "--self-test":
        self_test()
        return 0
    found = list(faults(pathlib.Path(sys.argv[1])))
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
