"""Makes the Markdown tables of docs/internals/kernels.md, section Results, from the JSON lines of `allot bench attention --json`.

    build-gpu/bin/allot bench attention --json > attention.jsonl
    python bench/attention/table.py attention.jsonl

Medians are in microseconds, with the 5th to 95th percentile. The K floor is the time in which a kernel that only reads takes
in the keys once. A shape without a row of allot is left out, and named on stderr.
"""

import argparse
import json
import sys

ESTIMATORS = ["sys", "threshold", "flash", "prop", "exact"]
# What all rows of a table share.
CONDITIONS = ["device", "driver", "cuda_runtime", "torch", "cudnn", "version", "dtype", "score_deviation", "read_gb_per_s",
              "flushed_bytes", "flush", "warmups", "runs"]


def read_rows(path):
    rows = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                sys.exit(f"{path}:{number}: no JSON ({error}); expected the output of `allot bench attention --json`")
            if not isinstance(row, dict) or row.get("what") != "attention" or "best_exact" not in row:
                sys.exit(f"{path}:{number}: no row of `allot bench attention --json`: {line.strip()[:80]}")
            rows.append(row)
    if not rows:
        sys.exit(f"{path}: no rows")
    return rows


def check_conditions(rows, path):
    for key in CONDITIONS:
        values = {str(row[key]) for row in rows}
        if len(values) > 1:
            sys.exit(f"{path}: rows differ in {key}: {', '.join(sorted(values))}; make one table of each")


def markdown(head, lines):
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *lines])


def conditions_table(row):
    return markdown(["device, driver", "CUDA, torch, cuDNN", "dtype, score deviation", "runs", "read bandwidth measured"],
                    [[f"{row['device']}, {row['driver']}", f"{row['cuda_runtime']}, {row['torch']}, {row['cudnn']}",
                      f"{row['dtype']}, {row['score_deviation']:g}",
                      f"{row['runs']} after {row['warmups']}, {row['flushed_bytes'] // 10**6} MB {'updated' if row['flush'] == 'update' else 'read'} before each",
                      f"{row['read_gb_per_s']:.0f} GB/s"]])


def time_cell(row):
    if row is None or row["median_us"] is None:
        return "-"
    return f"{row['median_us']:.1f} ({row['p5_us']:.1f}-{row['p95_us']:.1f})"


def samples_cell(row):
    fewest, most = row["fewest_samples"], row["most_samples"]
    return str(most) if fewest == most else f"{fewest}-{most}"


def shape_line(rows, cache):
    """Cells of one shape, or None where allot was not measured."""
    own = {row["kernel"]: row for row in rows if row["engine"] == "allot" and row["cache"] == cache}
    peers = [row for row in rows if row["engine"] == "torch" and row["median_us"] is not None]
    if not own:
        return None
    best = min(peers, key=lambda row: row["median_us"], default=None)
    sampled = next((row for row in own.values() if row["most_samples"] > 0), None)
    sys_row = own.get("sys")
    measured = sys_row is not None and sys_row["median_us"] is not None
    any_row = rows[0]
    return [any_row["shape"], samples_cell(sampled) if sampled else "-",
            f"{any_row['key_bytes'] / any_row['read_gb_per_s'] / 1e3:.1f}",
            f"{best['kernel']} {time_cell(best)}" if best else "-",
            *[time_cell(own.get(name)) for name in ESTIMATORS],
            f"{sys_row['k_gb_per_s']:.0f}" if measured else "-",
            f"{best['median_us'] / sys_row['median_us']:.2f}" if measured and best else "-"]


def attention_table(rows, cache):
    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    lines, left_out = [], []
    for shape in shapes:
        cells = shape_line([row for row in rows if row["shape"] == shape], cache)
        if cells:
            lines.append(cells)
        else:
            left_out.append(shape)
    if not lines:
        caches = sorted({row["cache"] for row in rows if row["engine"] == "allot"})
        sys.exit(f"no row of allot has the cache \"{cache}\"; there are: {'; '.join(caches) or 'none'}")
    if left_out:
        print(f"left out, without a row of allot: {', '.join(left_out)}", file=sys.stderr)
    return markdown(["shape", "S", "K floor", "best exact peer", *[f"`{name}`" for name in ESTIMATORS], "`sys`, keys GB/s",
                     "best exact / `sys`"], lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", help="file of JSON lines")
    parser.add_argument("--cache", default="pages of 16, shuffled", help="cache of allot's rows (default \"%(default)s\")")
    options = parser.parse_args()
    rows = read_rows(options.rows)
    check_conditions(rows, options.rows)
    print(conditions_table(rows[0]) + "\n\n" + attention_table(rows, options.cache))


if __name__ == "__main__":
    main()
