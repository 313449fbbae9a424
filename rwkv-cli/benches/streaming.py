#!/usr/bin/env python3
"""Proves on this machine what is said of streaming, with `rwkv bench`, `rwkv run` and `rwkv plan`, and prints a table.

    cargo build --release
    python3 rwkv-cli/benches/streaming.py                    # everything: some ten minutes, and a pack of 3 GB for 1.5b
    python3 rwkv-cli/benches/streaming.py throughput         # one part: throughput, prediction, peak or groups
    python3 rwkv-cli/benches/streaming.py --size 0.4b --repeat 1

Every claim is a ratio of numbers of the same run, because machines are shared and disks have moods. The control groups, of version
1 or 2, need root; without them that part is left out.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

MIB = 1 << 20
PROMPT = "All happy families are alike; every unhappy family is unhappy in its own way. "


class Proof:
    def __init__(self, args):
        self.args = args
        self.rows = []
        self.pack = None

    def rwkv(self, *arguments, group=None):
        """Runs the program to its end, within a control group if one is given."""
        enter = None if group is None else group.enter
        command = [self.args.rwkv, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, errors="replace", preexec_fn=enter)

    def json(self, *arguments, group=None):
        ended = self.rwkv(*arguments, "--json", "--quiet", group=group)
        if ended.returncode != 0:
            sys.exit(f"{' '.join(map(str, arguments))}: {ended.returncode}: {ended.stderr}")
        return json.loads(ended.stdout)

    def bench(self, *arguments, repeat=None):
        prefix = ["bench", "--synthetic", self.args.size, "--codec", self.args.codec]
        return self.json(*prefix, "--repeat", repeat or self.args.repeat, "--prompt-tokens", 16, *arguments)

    def fewer(self):
        """Rounds where ratios are far from what is wanted, and a token takes long."""
        return min(self.args.repeat, 2)

    def plan(self, ram):
        return self.json("plan", self.pack, "--no-probe", "--ram", ram)

    def claim(self, what, measured, target, holds):
        self.rows.append((what, measured, target, holds))
        print(f"{'ok  ' if holds else 'FAIL'} {what}: {measured} (wanted: {target})", flush=True)

    def largest_budget(self, fits):
        """The largest budget whose plan is like this; plans only grow."""
        low = self.json("plan", self.pack, "--no-probe")["smallest_budget"]
        high = 2 * self.pack.stat().st_size
        while high - low > MIB:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(self.plan(middle)) else (low, middle)
        return low


def throughput(proof):
    resident = proof.bench("--residency", "resident")
    compute = 1 / resident["decode_tokens_per_s"]
    print(f"     resident: {1e3 * compute:.0f} ms a token, {resident['memory_gb_per_s']:.1f} GB/s of memory")
    nothing = proof.largest_budget(lambda plan: plan["pinned_groups"] == 0)
    whole = proof.plan(nothing)["read_bytes_per_token"]
    half = proof.largest_budget(lambda plan: plan["read_bytes_per_token"] > 1.02 * whole / 2) + MIB
    runs = {}
    for name, ram, ahead in [
        ("nothing pinned", nothing, "adaptive"),
        ("nothing pinned", nothing, "next"),
        ("nothing pinned", nothing, "off"),
        ("half pinned", half, "adaptive"),
    ]:
        report = proof.bench("--ram", ram, "--read-ahead", ahead, repeat=None if ahead == "adaptive" else proof.fewer())
        token = 1 / report["decode_tokens_per_s"]
        read = report["read_bytes_per_token"] / report["disk_gb_per_s"] / 1e9
        runs[name, ahead] = report
        print(
            f"     {name}, {ahead}: {1e3 * token:.0f} ms a token, {report['read_bytes_per_token'] / 1e6:.0f} MB, "
            f"{report['read_gb_per_s']:.2f} of {report['disk_gb_per_s']:.2f} GB/s, waited {report['wait_share']:.0%}"
        )
        if ahead == "adaptive":
            bound = max(compute, read)
            proof.claim(f"{name}: time of a token / max(compute, read)", f"{token / bound:.2f}", "<= 1.08", token <= 1.08 * bound)
        if (name, ahead) == ("nothing pinned", "adaptive"):
            share = report["read_share_of_disk"]
            # Where computing takes longer than reading, the disk has to wait.
            wanted = 0.92 * min(1, read / compute)
            proof.claim(f"{name}: share of plain reads", f"{share:.2f}", f">= {wanted:.2f}", share >= wanted)
    adaptive = runs["nothing pinned", "adaptive"]
    ratio = runs["half pinned", "adaptive"]["read_bytes_per_token"] / adaptive["read_bytes_per_token"]
    proof.claim("half pinned: bytes per token, of all", f"{ratio:.2f}", "0.45 .. 0.52", 0.45 <= ratio <= 0.52)
    speed = {ahead: runs["nothing pinned", ahead]["decode_tokens_per_s"] for ahead in ("off", "next", "adaptive")}
    gain = speed["next"] / speed["off"]
    proof.claim("read-ahead next / off", f"{gain:.2f}", "> 1", gain > 1)
    gain = speed["adaptive"] / speed["next"]
    proof.claim("read-ahead adaptive / next", f"{gain:.2f}", ">= 0.97", gain >= 0.97)


def prediction(proof):
    for ram in ("512MiB", proof.pack.stat().st_size // 2):
        plan = proof.json("plan", proof.pack, "--ram", ram)
        bench = proof.bench("--ram", ram, repeat=proof.fewer())
        predicted, measured = plan["predicted_tokens_per_s"], bench["decode_tokens_per_s"]
        off = measured / predicted
        print(f"     --ram {ram}: predicted {predicted:.2f} tokens/s, measured {measured:.2f}")
        proof.claim("measured / predicted speed", f"{off:.2f}", "0.75 .. 1.25", 0.75 <= off <= 1.25)


def peak(proof):
    ram = 512
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as prompt:
        prompt.write(PROMPT * 20)
        prompt.flush()
        for io in ("direct", "buffered"):
            run = ("run", proof.pack, "--prompt-file", prompt.name, "-n", 3, "--seed", 1, "--stats", "--ram", f"{ram}MiB", "--io", io)
            ended = proof.rwkv(*run)
            found = re.search(r"^peak RSS +([0-9.]+) (MiB|GiB)", ended.stderr, re.M)
            if not found:
                sys.exit(f"no peak in {ended.stderr}")
            mib = float(found[1]) * (1024 if found[2] == "GiB" else 1)
            proof.claim(f"peak of a run within {ram} MiB, {io}", f"{mib:.0f} MiB", f"<= {ram + 64}", mib <= ram + 64)
            with Group.make(ram * MIB + 128 * MIB) as group:
                if group:
                    ended = proof.rwkv(*run, group=group)
                    what = f"a control group of {ram + 128} MiB, {io}"
                    proof.claim(what, f"exit code {ended.returncode}", "0", ended.returncode == 0)


def forget(path):
    """Lets the page cache forget a file."""
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)


class Group:
    """A memory control group below the root, of version 2 or 1."""

    @staticmethod
    def make(limit):
        for root, name in (("/sys/fs/cgroup", "memory.max"), ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")):
            root = pathlib.Path(root)
            path = root / f"rwkv-proof-{os.getpid()}"
            # Where both versions are mounted, the one that has the memory is below a folder that is no group.
            if not (root / "cgroup.procs").exists():
                continue
            try:
                children = root / "cgroup.subtree_control"
                if children.exists() and "memory" not in children.read_text().split():
                    children.write_text("+memory")
                path.mkdir()
                (path / name).write_text(str(int(limit)))
                # Where pages could be swapped out, the limit would be none.
                if (path / "memory.swap.max").exists():
                    (path / "memory.swap.max").write_text("0")
                return Group(path)
            except OSError as error:
                print(f"     {path}: {error}")
                if path.exists():
                    path.rmdir()
        return NoGroup()

    def __init__(self, path):
        self.path = path

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # A process that has ended may still be there for a moment.
        for _ in range(50):
            try:
                return self.path.rmdir()
            except OSError:
                time.sleep(0.1)
        print(f"     {self.path} cannot be removed")

    def enter(self):
        (self.path / "cgroup.procs").write_text(str(os.getpid()))


class NoGroup:
    def __enter__(self):
        print("     no control group can be made here: left out")
        return None

    def __exit__(self, *_):
        pass


def groups(proof):
    size = proof.pack.stat().st_size
    for share, wanted in ((0.9, 3.5), (0.6, 2.6), (0.35, 1.7)):
        with Group.make(share * size) as group:
            if group is None:
                return
            # What the program takes beside the model, and the kernel for it.
            budget = int(share * size) - 96 * MIB
            speeds = {"stream": [], "mmap": []}
            for _ in range(proof.fewer()):
                for name, options in (("mmap", ("--residency", "mmap")), ("stream", ("--ram", budget))):
                    # Pages that are cached for another group would not count in this one.
                    forget(proof.pack)
                    tokens = proof.args.tokens
                    # After a prompt every page of the weights has been used, as after many tokens.
                    run = ("run", proof.pack, "--prompt", 2 * PROMPT, "-n", tokens, "--seed", 1, "--temperature", 1, *options)
                    speeds[name].append(proof.json(*run, group=group)["tokens_per_s"])
            stream, mmap = (statistics.median(speeds[name]) for name in ("stream", "mmap"))
            print(f"     {share:.0%} of the pack: stream {stream:.2f} tokens/s, mmap {mmap:.2f}")
            gain = stream / mmap
            proof.claim(f"control group of {share:.0%}: stream / mmap", f"{gain:.1f}", f">= {wanted}", gain >= wanted)


PARTS = {"throughput": throughput, "prediction": prediction, "peak": peak, "groups": groups}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all of them by default")
    parser.add_argument("--rwkv", default="target/release/rwkv", help="the program")
    parser.add_argument("--size", default="1.5b", help="an official size")
    parser.add_argument("--codec", default="f16")
    parser.add_argument("--repeat", type=int, default=3, help="rounds, of which the median counts")
    parser.add_argument("--tokens", type=int, default=6, help="tokens of a run within a control group")
    args = parser.parse_args()
    unknown = set(args.parts) - set(PARTS)
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}")
    if not pathlib.Path(args.rwkv).exists():
        parser.error(f"{args.rwkv} is not there: cargo build --release")
    proof = Proof(args)
    begin = time.monotonic()
    # The first run makes the pack.
    proof.json("bench", "--synthetic", args.size, "--codec", args.codec, "--repeat", 1, "--prompt-tokens", 1, "--ram", "512MiB")
    cache = pathlib.Path(os.environ.get("RWKV_CACHE_DIR") or pathlib.Path.home() / ".cache/rwkv")
    proof.pack = cache / "synthetic" / f"{args.size}-{args.codec}-zeros0.85.rwkv"
    print(f"{proof.pack}: {proof.pack.stat().st_size / 1e9:.2f} GB, after {time.monotonic() - begin:.0f} s")
    for part in args.parts or PARTS:
        print(f"{part}:", flush=True)
        PARTS[part](proof)
        print(f"     after {time.monotonic() - begin:.0f} s in all", flush=True)
    print(f"\n| what | measured | wanted | |\n|---|---|---|---|")
    for what, measured, wanted, holds in proof.rows:
        print(f"| {what} | {measured} | {wanted} | {'holds' if holds else 'does not hold'} |")
    sys.exit(0 if all(row[3] for row in proof.rows) else 1)


if __name__ == "__main__":
    main()
