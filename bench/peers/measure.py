"""What the peer scripts share: the shapes of `allot bench attention`, a paged cache of random keys and values, allot's own
operator, the timer, and the rows they print.

A run is timed as in Appendix R of the S2ANTA paper: 512 MB are touched before each run, outside the timed region; the call
is captured in a CUDA graph once and CUDA events stand right around the launch of the graph; 10 warm-ups, 40 runs, median
and 5th to 95th percentile.
"""

import dataclasses
import json
import math
import statistics
import subprocess
import sys

import torch

FLUSHED_BYTES = 512 * 1000 * 1000
CALLS_BEFORE_CAPTURE = 3
TILE = 256  # keys a tile of the tiled estimators


@dataclasses.dataclass(frozen=True)
class Shape:
    name: str
    batch: int
    shortest: int  # keys of the shortest sequence; lengths are uniform from here to longest
    longest: int
    fewest_samples: int
    most_samples: int
    num_q_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128

    @property
    def ragged(self):
        return self.shortest != self.longest


def equal_lengths(name, batch, length, samples, **heads):
    return Shape(name, batch, length, length, samples, samples, **heads)


# As bench/attention/shapes.cc has them.
SHAPES = [
    equal_lengths("1x8k", 1, 8192, 128),
    equal_lengths("1x32k", 1, 32768, 128),
    equal_lengths("1x128k", 1, 131072, 128),
    equal_lengths("6x32k", 6, 32768, 128),
    equal_lengths("16x32k", 16, 32768, 128),
    equal_lengths("64x2k", 64, 2048, 8),
    equal_lengths("256x2k", 256, 2048, 8),
    Shape("512-ragged", 512, 64, 2048, 4, 12),
    equal_lengths("16x32k-s2048", 16, 32768, 2048),
    equal_lengths("1x32k-s2048", 1, 32768, 2048),
    equal_lengths("6x32k-s2048", 6, 32768, 2048),
    equal_lengths("1x32k-28q4kv", 1, 32768, 128, num_q_heads=28, num_kv_heads=4),
    equal_lengths("1536x672-28q4kv", 1536, 672, 8, num_q_heads=28, num_kv_heads=4),
]


def select_shapes(names):
    known = {shape.name: shape for shape in SHAPES}
    wanted = names.split(",") if names else list(known)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        sys.exit(f"--shapes: there is no shape {', '.join(unknown)}; known are {', '.join(known)}")
    return [known[name] for name in wanted]


def philox(index, key):
    """First word of Philox4x32-10 under (key, 0), counter (index, 0, 0, 0): base/philox.h."""
    counter, keys = [index, 0, 0, 0], [key, 0]
    for _ in range(10):
        a, b = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [(b >> 32) ^ counter[1] ^ keys[0], b & 0xFFFFFFFF, (a >> 32) ^ counter[3] ^ keys[1], a & 0xFFFFFFFF]
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return counter[0]


def uniforms(key, count, low, high):
    return [low + ((philox(i, key) * (high - low + 1)) >> 32) for i in range(count)]


def lengths_of(shape):
    return uniforms(1, shape.batch, shape.shortest, shape.longest)


def budgets_of(shape):
    return uniforms(2, shape.batch, shape.fewest_samples, shape.most_samples)


class Batch:
    """One decode step: query [batch, num_q_heads, head_dim] and pages [num_pages, num_kv_heads, page_size, head_dim] in
    random physical order, bfloat16."""

    def __init__(self, shape, page_size, score_deviation):
        torch.manual_seed(20)
        self.shape, self.page_size = shape, page_size
        self.lengths, self.budgets = lengths_of(shape), budgets_of(shape)
        pages = [-(-length // page_size) for length in self.lengths]
        pool = (sum(pages), shape.num_kv_heads, page_size, shape.head_dim)
        on_gpu = dict(device="cuda", dtype=torch.bfloat16)
        self.query = torch.randn(shape.batch, shape.num_q_heads, shape.head_dim, **on_gpu) * score_deviation
        self.key_pages, self.value_pages = torch.randn(pool, **on_gpu), torch.randn(pool, **on_gpu)
        order = torch.randperm(sum(pages), dtype=torch.int32)
        self.pages_of = order.split(pages)  # physical pages of each sequence, in the order of its tokens
        self.page_table = torch.zeros(shape.batch, max(pages), dtype=torch.int32)
        for b, own in enumerate(self.pages_of):
            self.page_table[b, :len(own)] = own
        self.scale = 1 / math.sqrt(shape.head_dim)
        self.key_bytes = sum(self.lengths) * shape.num_kv_heads * shape.head_dim * 2

    def contiguous(self):
        """Keys and values as [batch, length, num_kv_heads, head_dim]; all lengths must be equal."""
        length = self.shape.longest

        def gather(pool):
            out = torch.empty(self.shape.batch, length, *pool.shape[1:2], pool.shape[3], device="cuda", dtype=pool.dtype)
            for b, own in enumerate(self.pages_of):
                out[b] = pool[own.cuda().long()].transpose(1, 2).flatten(0, 1)[:length]
            return out

        return gather(self.key_pages), gather(self.value_pages)


class OwnCall:
    """allot::attend_out on a batch, ready to be queued again and again."""

    def __init__(self, batch, estimator):
        shape = batch.shape
        self.out = torch.full_like(batch.query, float("nan"))
        self.positional = [batch.query, batch.key_pages, batch.value_pages, batch.page_table.cuda(),
                           torch.arange(shape.batch + 1, device="cuda"),
                           torch.tensor(batch.lengths, dtype=torch.int32, device="cuda")]
        self.named = dict(estimator=estimator, scale=batch.scale, tile=TILE, max_length=max(batch.lengths))
        if estimator != "exact":
            draws = torch.tensor([[1, 2, b] for b in range(shape.batch)], dtype=torch.int32)
            self.positional += [torch.tensor(batch.budgets, dtype=torch.int32, device="cuda"), draws.cuda()]
            self.named["max_budget"] = max(batch.budgets)
        bytes_needed = torch.ops.allot.workspace_bytes(*self.positional, **self.named)
        self.workspace = torch.empty(bytes_needed, dtype=torch.uint8, device="cuda")
        torch.ops.allot.reset_workspace(self.workspace)

    def __call__(self):
        torch.ops.allot.attend_out(*self.positional, **self.named, out=self.out, workspace=self.workspace)

    def result(self):
        """The output of the last run; raises what that run found."""
        torch.ops.allot.check(self.workspace)
        return self.out.clone()


def why_unsuitable(estimator, batch):
    """Why allot's estimator cannot run on a batch, or None."""
    if estimator != "flash":
        return None
    for b, (length, budget) in enumerate(zip(batch.lengths, batch.budgets)):
        tiles = -(-length // TILE)
        if budget < tiles:
            return f"flash needs a sample a tile: sequence {b} has {tiles} tiles of {TILE} keys and {budget} samples"
    return None


class ColdTimer:
    def __init__(self, warmups, runs):
        self.warmups, self.runs = warmups, runs
        self.flushed = torch.zeros(FLUSHED_BYTES // 4, device="cuda")

    def time(self, call):
        """Microseconds of each run of `call`, a function that queues work on the current stream."""
        for _ in range(CALLS_BEFORE_CAPTURE):
            call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="relaxed"):
            call()
        times = []
        for run in range(self.warmups + self.runs):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            # Longer than the host needs to queue the rest, so the GPU never waits for the host between the events.
            self.flushed.mul_(0.5).add_(1.0)
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            if run >= self.warmups:
                times.append(start.elapsed_time(end) * 1e3)
        return times


def percentile(values, fraction):
    values = sorted(values)
    place = fraction * (len(values) - 1)
    below = int(place)
    above = min(below + 1, len(values) - 1)
    return values[below] + (place - below) * (values[above] - values[below])


def rms_error(out, exact):
    """Root mean square of the difference over that of the exact output."""
    difference = (out.double() - exact.double()).square().mean().sqrt()
    return (difference / exact.double().square().mean().sqrt()).item()


def driver_version():
    try:
        asked = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], capture_output=True,
                               text=True, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return "unknown"
    return asked.stdout.split("\n")[0]


class Report:
    """Prints a table as rows come and keeps them for JSON lines."""

    COLUMNS = "{:<14}{:<11}{:<22}{:>9}{:>11}{:>18}{:>9}{:>8}{:>10}  {}"

    def __init__(self, timer, peer_versions, ratio_of):
        self.conditions = dict(device=torch.cuda.get_device_name(), driver=driver_version(), cuda_runtime=torch.version.cuda,
                               torch=torch.__version__, flushed_bytes=FLUSHED_BYTES,
                               warmups=timer.warmups, runs=timer.runs, **peer_versions)
        self.rows, self.failures = [], 0
        print(", ".join(f"{key} {value}" for key, value in self.conditions.items()))
        print(f"CUDA graph of one call; median and 5th..95th percentile; ratio = {ratio_of}\n")
        print(self.COLUMNS.format("shape", "engine", "kernel", "samples", "median us", "5..95 % us", "K GB/s", "ratio",
                                  "rms err.", "cache"), flush=True)

    def add(self, batch, engine, kernel, cache, samples="", times=None, peer=(None, None), error=None, note="",
            kv_dtype=torch.bfloat16):
        """One row; gives its median. `peer` is the name and the median that the ratio divides by this row's; a row
        without times needs a note. `kv_dtype` is of the cache that the row read."""
        shape, (peer_name, peer_us) = batch.shape, peer
        key_bytes = batch.key_bytes * kv_dtype.itemsize // 2
        median = statistics.median(times) if times else None
        row = dict(what="attention", shape=shape.name, batch=shape.batch, shortest=shape.shortest, longest=shape.longest,
                   num_q_heads=shape.num_q_heads, num_kv_heads=shape.num_kv_heads, head_dim=shape.head_dim, engine=engine,
                   kernel=kernel, cache=cache, samples=samples, median_us=median,
                   p5_us=percentile(times, 0.05) if times else None, p95_us=percentile(times, 0.95) if times else None,
                   kv_dtype=str(kv_dtype).removeprefix("torch."), key_bytes=key_bytes,
                   k_gb_per_s=key_bytes / median / 1e3 if times else None,
                   peer=peer_name, peer_us=peer_us, ratio=peer_us / median if peer_us and times else None,
                   rms_error=error, note=note)
        self.rows.append(row | self.conditions)

        def cell(value, form):
            return "-" if value is None else form.format(value)

        spread = f"{row['p5_us']:.1f}..{row['p95_us']:.1f}" if times else "-"
        print(self.COLUMNS.format(shape.name, engine, kernel, samples or "-", cell(median, "{:.1f}"), spread,
                                  cell(row["k_gb_per_s"], "{:.0f}"), cell(row["ratio"], "{:.2f}"), cell(error, "{:.4f}"),
                                  cache))
        if note:
            print(f"{'':<14}{note}")
        sys.stdout.flush()
        return median

    def add_failure(self, batch, engine, kernel, cache, samples, error, kv_dtype=torch.bfloat16):
        """The row of a call that raised; the script fails once every row is out."""
        self.failures += 1
        self.add(batch, engine, kernel, cache, samples, note=f"{type(error).__name__}: {error}".split("\n")[0],
                 kv_dtype=kv_dtype)

    def finish(self, json_path):
        if json_path:
            with open(json_path, "w") as file:
                for row in self.rows:
                    file.write(json.dumps(row) + "\n")
        if self.failures:
            sys.exit(f"{self.failures} calls failed; their rows say why")


def samples_text(batch):
    fewest, most = min(batch.budgets), max(batch.budgets)
    return str(most) if fewest == most else f"{fewest}..{most}"


def add_options(parser, estimators, library_required=True):
    parser.add_argument("--library", required=library_required, help="liballot_torch.so")
    parser.add_argument("--shapes", default="", help="names, separated by commas; default all")
    parser.add_argument("--estimators", default=estimators, help="allot's estimators beside exact (default %(default)s)")
    parser.add_argument("--page-size", type=int, default=16, help="tokens a page (default %(default)s)")
    parser.add_argument("--score-deviation", type=float, default=1.0,
                        help="standard deviation of the scores (default %(default)s)")
    parser.add_argument("--warmups", type=int, default=10)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--json", help="file for one JSON line a row")


def start(options):
    """Loads allot's operators where a library is given, and says what is missing when it cannot."""
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a GPU: torch.cuda.is_available() is False")
    if options.library:
        torch.ops.load_library(options.library)
    return ColdTimer(options.warmups, options.runs)


def time_own(report, timer, batch, estimators, peers, exact):
    """Rows of allot's exact kernel and `estimators`; `peers` are (name, median), compared with the fastest."""
    cache = f"pages of {batch.page_size}, shuffled"
    best = min(peers, key=lambda peer: peer[1], default=(None, None))
    for estimator in ["exact"] + [name for name in estimators if name != "exact"]:
        samples = "" if estimator == "exact" else samples_text(batch)
        reason = why_unsuitable(estimator, batch)
        if reason:
            report.add(batch, "allot", estimator, cache, samples, note=reason)
            continue
        try:
            call = OwnCall(batch, estimator)
            times = timer.time(call)
            report.add(batch, "allot", estimator, cache, samples, times, best, rms_error(call.result(), exact))
        except (RuntimeError, ValueError) as error:  # NotImplementedError is a RuntimeError
            report.add_failure(batch, "allot", estimator, cache, samples, error)


def exact_output(batch):
    call = OwnCall(batch, "exact")
    call()
    return call.result()


def float32_output(batch):
    """Exact attention by torch in float32, one sequence after the other: [batch, num_q_heads, head_dim]."""
    shape = batch.shape
    out = torch.empty(batch.query.shape, dtype=torch.float32, device="cuda")
    for b, (own, length) in enumerate(zip(batch.pages_of, batch.lengths)):
        own = own.cuda().long()
        keys, values = (pool[own].float().transpose(0, 1).flatten(1, 2)[:, :length]  # [num_kv_heads, length, head_dim]
                        for pool in (batch.key_pages, batch.value_pages))
        query = batch.query[b].float().view(shape.num_kv_heads, -1, shape.head_dim)
        weights = (batch.scale * query @ keys.transpose(1, 2)).softmax(dim=-1)
        out[b] = (weights @ values).flatten(0, 1)
    return out
