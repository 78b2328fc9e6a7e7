"""Checks that each folder includes only the folders docs/design.md lets it use, and that LibTorch and CUDA headers stay
where they belong.

    check_includes.py REPOSITORY | --self-test
"""

import pathlib
import re
import sys
import tempfile

# Folder -> folders it may include besides itself. base is open to all.
ALLOWED = {
    "base": set(),
    "kernels": set(),
    "policy": set(),
    "wire": set(),
    "model": {"kernels"},
    "evaluation": {"policy", "model"},
    "aggregator": {"policy", "wire"},
    "worker": {"wire", "policy", "evaluation", "model", "kernels"},
    "bench": {"kernels", "model", "policy"},
    "app": {"kernels", "policy", "wire", "model", "evaluation", "aggregator", "worker", "bench"},
}
# evaluation may use these headers of model only: they are torch-free and light.
EVALUATION_MODEL_HEADERS = {"model/tokenizer.h", "model/model_config.h"}
TORCH = re.compile(r'#include\s*[<"]((?:ATen|c10|torch)/[^>"]*)')
CUDA = re.compile(r'#include\s*[<"](cuda[^>"]*)')
LOCAL = re.compile(r'#include\s*"([^"]+)"')


def faults(repository):
    for folder, allowed in ALLOWED.items():
        for path in sorted((repository / folder).rglob("*")):
            if path.suffix not in {".h", ".cc", ".cu", ".cuh"}:
                continue
            where = path.relative_to(repository)
            for number, line in enumerate(path.read_text().splitlines(), 1):
                torch, cuda, local = TORCH.match(line), CUDA.match(line), LOCAL.match(line)
                if torch and folder != "model" and "kernels/torch" not in str(where):
                    yield f"{where}:{number}: includes {torch[1]}; LibTorch belongs in model and kernels/torch"
                if cuda and folder not in {"kernels", "model", "bench"}:
                    yield f"{where}:{number}: includes {cuda[1]}; CUDA belongs in kernels, model and bench"
                if not local:
                    continue
                target = local[1].split("/")[0]
                if target not in ALLOWED:
                    yield f"{where}:{number}: includes {local[1]}, which is not rooted at the repository"
                elif target not in allowed | {folder, "base"}:
                    yield f"{where}:{number}: includes {local[1]}; {folder} may include {', '.join(sorted(allowed | {'base'}))}"
                elif folder == "evaluation" and target == "model" and local[1] not in EVALUATION_MODEL_HEADERS:
                    yield f"{where}:{number}: includes {local[1]}; evaluation may use the tokenizer only"


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name in ALLOWED:
            (root / name).mkdir()
        (root / "policy" / "a.cc").write_text('#include "aggregator/history.h"\n#include <ATen/ATen.h>\n#include "b.h"\n')
        (root / "aggregator" / "a.cc").write_text('#include "policy/policy.h"\n#include "base/error.h"\n')
        found = list(faults(root))
        assert len(found) == 3 and all(f.startswith("policy/a.cc") for f in found), found


def main():
    if sys.argv[1] == "--self-test":
        self_test()
        return 0
    found = list(faults(pathlib.Path(sys.argv[1])))
    print("\n".join(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
