"""mypy finds nothing to say about python/allot_ray.

    types_test.py SOURCE CACHE

SOURCE is the root of the sources, CACHE a folder for what mypy keeps between two runs. Exits 77 (skipped) when this Python
cannot import mypy or ray.
"""

import sys
from pathlib import Path

try:
    import mypy.api
    import ray  # noqa: F401  the package's types come from it
except ImportError as error:
    print(f"skipped: {sys.executable} cannot import {error.name}; ./setup --check installs it into .deps/check")
    sys.exit(77)

package = Path(sys.argv[1]) / "python"
said, failed, code = mypy.api.run(
    [f"--config-file={package}/pyproject.toml", f"--cache-dir={sys.argv[2]}", f"{package}/allot_ray"]
)
print(said + failed, end="")
sys.exit(code)
