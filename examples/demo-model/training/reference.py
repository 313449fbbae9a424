"""The model once more, in float64 and token by token: what the engine's results are held against.

    python3 reference.py ../demo.safetensors tokens.txt golden.safetensors

Reads token ids and writes a safetensors file with `tokens` (I64), `positions` (I64) and `logits` (F32, a row for each
position). Written from the papers' formulas, with numpy alone, and shares nothing with model.py: loops over tokens and
heads, no tricks.
"""

import argparse
import math
import pathlib

import numpy as np
from safetensors.numpy import load_file, save_file

HEAD = 64
DECAY_SCALE = math.exp(-0.5)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def layer_norm(x, weight, bias, eps=1e-5):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * weight + bias


class Reference:
    """One sequence, from a state of zeros."""

    def __init__(self, path):
        self.tensors = {name: tensor.astype(np.float64).squeeze() for name, tensor in load_file(path).items()}
        names = self.tensors
        self.blocks = 1 + max(int(name.split(".")[2]) for name in names if name.startswith("rwkv.blocks."))
        self.attention_blocks = 1 + max((int(name.split(".")[1]) for name in names if name.startswith("moba.")), default=-1)
        self.state = {}

    def weights(self, prefix):
        return lambda name: self.tensors[f"{prefix}.{name}"]

    def shifted(self, key, x):
        """What stood here at the token before, and x for the next one."""
        before = self.state.get(key, np.zeros_like(x))
        self.state[key] = x
        return before

    def channel_mix(self, prefix, x):
        w = self.weights(prefix)
        x = layer_norm(x, w("ln2.weight"), w("ln2.bias"))
        mixed = x + (self.shifted((prefix, "ffn"), x) - x) * w("ffn.x_k")
        return w("ffn.value.weight") @ np.maximum(w("ffn.key.weight") @ mixed, 0) ** 2

    def time_mix(self, prefix, x, v_first):
        w = self.weights(prefix)
        x = layer_norm(x, w("ln1.weight"), w("ln1.bias"))
        delta = self.shifted((prefix, "att"), x) - x
        xr, xw, xk, xv, xa, xg = (x + delta * w(f"att.x_{name}") for name in "rwkvag")
        r, k, v = (w(f"att.{name}.weight") @ y for name, y in (("receptance", xr), ("key", xk), ("value", xv)))
        decay = np.exp(-DECAY_SCALE * sigmoid(w("att.w0") + np.tanh(xw @ w("att.w1")) @ w("att.w2")))
        a = sigmoid(w("att.a0") + (xa @ w("att.a1")) @ w("att.a2"))
        g = sigmoid(xg @ w("att.g1")) @ w("att.g2")
        kk = (k * w("att.k_k")).reshape(-1, HEAD)
        kk /= np.maximum(np.sqrt((kk * kk).sum(-1, keepdims=True)), 1e-12)
        k = k * (1 + (a - 1) * w("att.k_a"))
        if v_first is None:
            v_first = v
        else:
            v = v + (v_first - v) * sigmoid(w("att.v0") + (xv @ w("att.v1")) @ w("att.v2"))

        heads = len(kk)
        r, k, v, a, decay = (y.reshape(heads, HEAD) for y in (r, k, v, a, decay))
        state = self.state.setdefault((prefix, "wkv"), np.zeros((heads, HEAD, HEAD)))  # [head, value, key]
        y = np.zeros((heads, HEAD))
        for h in range(heads):
            removed = state[h] @ -kk[h]
            state[h] = state[h] * decay[h] + np.outer(removed, kk[h] * a[h]) + np.outer(v[h], k[h])
            y[h] = state[h] @ r[h]
        weight, bias = (w(f"att.ln_x.{name}").reshape(heads, HEAD) for name in ("weight", "bias"))
        y = layer_norm(y, weight, bias, eps=64e-5)
        y += (r * k * w("att.r_k").reshape(heads, HEAD)).sum(-1, keepdims=True) * v
        return w("att.output.weight") @ (y.reshape(-1) * g), v_first

    def attention(self, prefix, x):
        w = self.weights(prefix)
        x = layer_norm(x, w("ln1.weight"), w("ln1.bias"))
        q, k, v = ((w(f"att.{name}.weight") @ x).reshape(-1, HEAD) for name in ("receptance", "key", "value"))
        keys, values = self.state.setdefault((prefix, "kv"), ([], []))
        keys.append(k)
        values.append(v)
        scores = np.einsum("hn,thn->ht", q, np.array(keys)) / math.sqrt(HEAD)
        share = np.exp(scores - scores.max(-1, keepdims=True))
        share /= share.sum(-1, keepdims=True)
        return w("att.output.weight") @ np.einsum("ht,thn->hn", share, np.array(values)).reshape(-1)

    def step(self, token):
        """The logits after one more token."""
        w = self.weights("rwkv")
        x = layer_norm(w("emb.weight")[token], w("blocks.0.ln0.weight"), w("blocks.0.ln0.bias"))
        v_first, run = None, self.blocks // max(self.attention_blocks, 1)
        for i in range(self.blocks):
            prefix = f"rwkv.blocks.{i}"
            mixed, v_first = self.time_mix(prefix, x, v_first)
            x = x + mixed
            x = x + self.channel_mix(prefix, x)
            if self.attention_blocks and (i + 1) % run == 0:
                prefix = f"moba.{i // run}"
                x = x + self.attention(prefix, x)
                x = x + self.channel_mix(prefix, x)
        return w("head.weight") @ layer_norm(x, w("ln_out.weight"), w("ln_out.bias"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("tokens", type=pathlib.Path, help="ids, separated by blanks or line feeds")
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--positions", type=int, nargs="*", help="which logits are written [all]")
    arguments = parser.parse_args()

    tokens = [int(id) for id in arguments.tokens.read_text().split()]
    reference = Reference(arguments.checkpoint)
    logits = np.array([reference.step(token) for token in tokens])
    positions = np.array(arguments.positions or range(len(tokens)), np.int64)
    golden = {"tokens": np.array(tokens, np.int64), "positions": positions, "logits": logits[positions].astype(np.float32)}
    save_file(golden, arguments.out)


if __name__ == "__main__":
    main()
