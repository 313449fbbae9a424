"""Bits per byte that models without a network reach on the held-out addresses, for comparison.

    python3 baselines.py build

"xz": `xz -9e`, of the held-out text alone, and what it adds to the training text when both are compressed as one.
"order n": bytes predicted from the n bytes before them. Counts are those of the training text and are not updated while the
held-out text is read; orders are interpolated as Witten and Bell do,

    p(c | s) = (count(sc) + kinds(s) p(c | s')) / (count(s) + kinds(s))

where kinds(s) is how many different bytes follow s, s' is s without its first byte, and order -1 is 1/256 for every byte.
"""

import argparse
import lzma
import pathlib

import numpy as np

HIGHEST_ORDER = 5


def xz(data):
    return len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))


def codes(data, length):
    """For each position from `length - 1` on, the `length` bytes that end there, as one number."""
    out = np.zeros(len(data) - length + 1, np.uint64)
    for offset in range(length):
        out = out << np.uint64(8) | data[offset : len(data) - length + 1 + offset]
    return out


def look_up(keys, values, wanted):
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], 0)


def orders(train, held_out, highest):
    """Bits per byte for every order up to the highest."""
    p = np.full(len(held_out), 1 / 256)
    for order in range(highest + 1):
        seen, counts = np.unique(codes(train, order + 1), return_counts=True)
        contexts, first = np.unique(seen >> np.uint64(8), return_index=True)
        totals = np.add.reduceat(counts, first)
        kinds = np.diff(np.append(first, len(seen)))
        wanted = codes(held_out, order + 1)
        count = look_up(seen, counts, wanted)
        total = look_up(contexts, totals, wanted >> np.uint64(8))
        kind = look_up(contexts, kinds, wanted >> np.uint64(8))
        # A context that never occurred leaves the decision to the shorter one. So do the first bytes, which have no context.
        lower = p[order:]
        p[order:] = np.where(total > 0, (count + kind * lower) / np.maximum(total + kind, 1), lower)
        yield order, -np.log2(p).mean()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path, help="what prepare.py wrote")
    arguments = parser.parse_args()
    train, held_out = ((arguments.data / f"{name}.txt").read_bytes() for name in ("train", "held-out"))

    print(f"xz -9e, alone            {8 * xz(held_out) / len(held_out):.3f} bits per byte")
    print(f"xz -9e, after training   {8 * (xz(train + held_out) - xz(train)) / len(held_out):.3f} bits per byte")
    for order, bits in orders(np.frombuffer(train, np.uint8), np.frombuffer(held_out, np.uint8), HIGHEST_ORDER):
        print(f"order {order}                  {bits:.3f} bits per byte")


if __name__ == "__main__":
    main()
