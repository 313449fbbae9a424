"""RWKV-X for training: RWKV-7 blocks with attention blocks between them, in PyTorch.

Names and layouts are those of official checkpoints, so a state dict is a checkpoint but for the prefix `rwkv.` of all
that is not attention. Sources: RWKV-7 "Goose" (arXiv 2503.14456), RWKV-X (arXiv 2504.21463).
"""

import math
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.cpp_extension import load

BLOCKS, ATTENTION_BLOCKS = 6, 2
WIDTH, HEAD = 192, 64
HEADS = WIDTH // HEAD
VOCABULARY = 2048
RANKS = {"w": 32, "a": 32, "v": 16, "g": 48}
DECAY_SCALE = math.exp(-0.5)

_wkv = load(
    "wkv7",
    [str(pathlib.Path(__file__).with_name("wkv7.cpp"))],
    extra_cflags=["-O3", "-march=native", "-fopenmp", "-ffast-math"],
    extra_ldflags=["-fopenmp"],
)


class Wkv7(torch.autograd.Function):
    """The recurrence of every head over [batch, time, head, 64], from a state of zeros."""

    @staticmethod
    def forward(context, *inputs):
        inputs = [x.contiguous() for x in inputs]
        y, kept = _wkv.forward(*inputs)
        context.save_for_backward(kept, *inputs)
        return y

    @staticmethod
    def backward(context, dy):
        return tuple(_wkv.backward(dy.contiguous(), *context.saved_tensors))


def shift(x):
    """Each token's predecessor; zeros before the first."""
    return F.pad(x, (0, 0, 1, -1))


def heads(x):
    return x.unflatten(-1, (HEADS, HEAD))


def vector(values):
    return nn.Parameter(values.reshape(1, 1, WIDTH).clone())


def linear(inputs, outputs, init, *arguments, **keywords):
    layer = nn.Linear(inputs, outputs, bias=False)
    init(layer.weight, *arguments, **keywords)
    return layer


class ChannelMix(nn.Module):
    def __init__(self):
        super().__init__()
        self.x_k = vector(torch.full((WIDTH,), 0.5))
        self.key = linear(WIDTH, 4 * WIDTH, nn.init.orthogonal_)
        self.value = linear(4 * WIDTH, WIDTH, nn.init.zeros_)

    def forward(self, x):
        mixed = x + (shift(x) - x) * self.x_k
        return self.value(torch.relu(self.key(mixed)) ** 2)


class TimeMix(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.first = block == 0
        depth = block / (BLOCKS - 1)
        channel = torch.arange(WIDTH) / WIDTH
        for name, power in zip("rwkvag", (0.2, 0.9, 0.7, 0.7, 0.9, 0.2)):
            setattr(self, f"x_{name}", vector(1 - channel ** (power * (1 - depth * 0.5 + 0.5))))
        self.w0 = vector(-5.5 + 6 * channel ** (1 + depth**0.3))
        self.a0 = vector(torch.zeros(WIDTH))
        if not self.first:
            self.v0 = vector(torch.full((WIDTH,), 0.73))
        for name, rank in RANKS.items():
            if name == "v" and self.first:
                continue
            down = torch.randn(WIDTH, rank) * 0.02 if name == "g" else torch.zeros(WIDTH, rank)
            setattr(self, f"{name}1", nn.Parameter(down))
            setattr(self, f"{name}2", nn.Parameter(nn.init.orthogonal_(torch.empty(rank, WIDTH)) * 0.1))
        self.k_k = vector(torch.full((WIDTH,), 0.71))
        self.k_a = vector(torch.full((WIDTH,), 1.02))
        self.r_k = nn.Parameter(torch.full((HEADS, HEAD), -0.04))
        for name, gain in (("receptance", 0.5), ("key", 0.05), ("value", 0.5)):
            bound = gain / WIDTH**0.5
            setattr(self, name, linear(WIDTH, WIDTH, nn.init.uniform_, -bound, bound))
        self.output = linear(WIDTH, WIDTH, nn.init.zeros_)
        self.ln_x = nn.GroupNorm(HEADS, WIDTH, eps=64e-5)

    def inputs(self, x, v_first):
        """What the recurrence reads (r, w, k, v, a, b), the gate, and the first block's values."""
        delta = shift(x) - x
        xr, xw, xk, xv, xa, xg = (x + delta * getattr(self, f"x_{name}") for name in "rwkvag")
        r, k, v = self.receptance(xr), self.key(xk), self.value(xv)
        w = torch.exp(-DECAY_SCALE * torch.sigmoid(self.w0 + torch.tanh(xw @ self.w1) @ self.w2))
        a = torch.sigmoid(self.a0 + (xa @ self.a1) @ self.a2)
        g = torch.sigmoid(xg @ self.g1) @ self.g2
        kk = F.normalize(heads(k * self.k_k), dim=-1)
        k = k * (1 + (a - 1) * self.k_a)
        if self.first:
            v_first = v
        else:
            v = v + (v_first - v) * torch.sigmoid(self.v0 + (xv @ self.v1) @ self.v2)
        return heads(r), heads(w), heads(k), heads(v), -kk, kk * heads(a), g, v_first

    def outputs(self, y, r, k, v, g):
        y = self.ln_x(y.reshape(-1, WIDTH)).view_as(g)
        bonus = (r * k * self.r_k).sum(-1, keepdim=True) * v
        return self.output((y + bonus.reshape(g.shape)) * g)

    def forward(self, x, v_first):
        r, w, k, v, a, b, g, v_first = self.inputs(x, v_first)
        return self.outputs(Wkv7.apply(r, w, k, v, a, b), r, k, v, g), v_first


class Attention(nn.Module):
    """Causal attention without positional encoding: order comes from the RWKV blocks before it."""

    def __init__(self):
        super().__init__()
        for name in ("receptance", "key", "value"):
            setattr(self, name, linear(WIDTH, WIDTH, nn.init.normal_, std=0.05))
        self.output = linear(WIDTH, WIDTH, nn.init.zeros_)

    def forward(self, x):
        q, k, v = (heads(layer(x)).transpose(1, 2) for layer in (self.receptance, self.key, self.value))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.output(y.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    def __init__(self, mixer, first, dropout):
        super().__init__()
        if first:
            self.ln0 = nn.LayerNorm(WIDTH)
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.att, self.ffn = mixer, ChannelMix()
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, v_first):
        if isinstance(self.att, TimeMix):
            mixed, v_first = self.att(self.ln1(x), v_first)
        else:
            mixed = self.att(self.ln1(x))
        x = x + self.dropout(mixed)
        return x + self.dropout(self.ffn(self.ln2(x))), v_first


class RwkvX(nn.Module):
    """Logits [batch, time, vocabulary] of tokens [batch, time]; every row starts from a state of zeros."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.emb = nn.Embedding(VOCABULARY, WIDTH)
        nn.init.uniform_(self.emb.weight, -0.1, 0.1)
        self.blocks = nn.ModuleList(Block(TimeMix(i), i == 0, dropout) for i in range(BLOCKS))
        self.moba = nn.ModuleList(Block(Attention(), False, dropout) for _ in range(ATTENTION_BLOCKS))
        self.ln_out = nn.LayerNorm(WIDTH)
        self.head = linear(WIDTH, VOCABULARY, nn.init.orthogonal_, gain=0.5)

    def forward(self, tokens):
        x, v_first = self.blocks[0].ln0(self.emb(tokens)), None
        run = BLOCKS // ATTENTION_BLOCKS
        for j, attention in enumerate(self.moba):
            for block in self.blocks[j * run : (j + 1) * run]:
                x, v_first = block(x, v_first)
            x, _ = attention(x, None)
        return self.head(self.ln_out(x))


def load_checkpoint(model, path):
    """Takes the weights of an official checkpoint in safetensors."""
    tensors = {name.removeprefix("rwkv."): tensor.float() for name, tensor in load_file(path).items()}
    for unused in ("v0", "v1", "v2"):  # official checkpoints may carry these for block 0, which has no use for them
        tensors.pop(f"blocks.0.att.{unused}", None)
    model.load_state_dict(tensors)


def save_checkpoint(model, path):
    """Writes an official checkpoint in safetensors, f16."""
    tensors = {
        name if name.startswith("moba.") else f"rwkv.{name}": tensor.detach().half().contiguous()
        for name, tensor in model.state_dict().items()
    }
    save_file(tensors, path)
