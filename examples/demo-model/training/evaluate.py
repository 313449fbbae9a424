"""Bits per byte of a checkpoint on the held-out addresses.

    python3 evaluate.py build ../demo.safetensors

Two measures. "chunks": the tokens of all addresses in a row, in chunks of 256 that each start from an empty state.
"addresses": every address from its start to its end in one pass, the state and the attention's keys carried all along.
The first token of a chunk, or of an address, is given and not predicted.
"""

import argparse
import math
import pathlib

import numpy as np
import torch
import torch.nn.functional as F

from model import VOCABULARY, RwkvX, load_checkpoint
from vocabulary import END_OF_TEXT

CHUNK = 256


@torch.no_grad()
def loss(model, tokens):
    """Nats of tokens [batch, time + 1], summed, without the first of each row."""
    logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1), reduction="sum").item()


def in_chunks(model, tokens, length=CHUNK, limit=None, batch=16):
    """Mean nats a token. `limit`: how many chunks at most, spread over all tokens."""
    starts = np.arange(0, len(tokens) - length - 1, length)
    if limit is not None and limit < len(starts):
        starts = starts[np.linspace(0, len(starts) - 1, limit).astype(int)]
    total = 0.0
    for at in range(0, len(starts), batch):
        rows = np.stack([tokens[start : start + length + 1] for start in starts[at : at + batch]])
        total += loss(model, torch.from_numpy(rows.astype(np.int64)))
    return total / (len(starts) * length)


def in_addresses(model, tokens):
    """Nats, summed, and how many tokens were predicted."""
    total, count, start = 0.0, 0, 0
    for end in np.flatnonzero(tokens == END_OF_TEXT):
        address = torch.from_numpy(tokens[start:end].astype(np.int64))[None]
        total, count, start = total + loss(model, address), count + address.numel() - 1, end + 1
    return total, count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path, help="what prepare.py wrote")
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("--train", action="store_true", help="also measure 512 chunks of the training text")
    arguments = parser.parse_args()

    model = RwkvX().eval()
    load_checkpoint(model, arguments.checkpoint)
    tokens = np.load(arguments.data / "held-out.npy")
    size = (arguments.data / "held-out.txt").stat().st_size
    tokens_per_bit = len(tokens) / size / math.log(2)
    nats = in_chunks(model, tokens)
    print(f"chunks     {nats:.4f} nats a token, {nats * tokens_per_bit:.4f} bits per byte")
    if arguments.train:
        print(f"training   {in_chunks(model, np.load(arguments.data / 'train.npy'), limit=512):.4f} nats a token, in chunks")
    nats, count = in_addresses(model, tokens)
    print(f"addresses  {nats / count:.4f} nats a token, {nats / math.log(2) / size:.4f} bits per byte")


if __name__ == "__main__":
    main()
