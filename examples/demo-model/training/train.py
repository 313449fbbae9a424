"""Trains the demo model.

    python3 train.py build run --steps 6000
    python3 train.py build run --resume --steps 7000      # goes on where it stopped, with another end

Every step reads as many tokens, in windows of 256, 512 or 1024 drawn from the whole training text. The learning rate rises
over the first steps, stays, and falls in a line to zero over the last `--decay` steps; it follows steps, not the clock, so
a run may be paused. Writes to the run's folder

    best.safetensors    the checkpoint with the least held-out loss so far
    state.pt            all that --resume needs
    loss.csv            step, learning rate, training loss (mean since the last line), held-out loss; nats a token

The held-out loss is that of evaluate.py's "chunks", over some of them, spread over all held-out addresses.
"""

import argparse
import os
import pathlib
import time

import numpy as np
import torch
import torch.nn.functional as F

from evaluate import in_chunks
from model import VOCABULARY, RwkvX, load_checkpoint, save_checkpoint

WINDOWS = {256: 0.5, 512: 0.25, 1024: 0.25}  # length: how often


def optimizer_of(model, arguments):
    """AdamW; matrices decay, the embedding and vectors do not."""
    decayed, plain = [], []
    for name, parameter in model.named_parameters():
        matrix = parameter.dim() == 2 and not name.startswith("emb.")
        (decayed if matrix else plain).append(parameter)
    groups = [dict(params=decayed, weight_decay=arguments.weight_decay), dict(params=plain, weight_decay=0)]
    return torch.optim.AdamW(groups, lr=arguments.lr, betas=(0.9, 0.98), eps=1e-12, fused=True)


def learning_rate(step, arguments):
    rising = (step + 1) / arguments.warm_up
    falling = (arguments.steps - step) / arguments.decay
    return arguments.lr * min(1.0, rising, falling)


def batch(tokens, random, tokens_a_step):
    """Inputs and targets of one step."""
    length = int(random.choice(list(WINDOWS), p=list(WINDOWS.values())))
    starts = random.integers(0, len(tokens) - length, tokens_a_step // length)
    rows = torch.from_numpy(np.stack([tokens[start : start + length + 1] for start in starts]).astype(np.int64))
    return rows[:, :-1], rows[:, 1:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path, help="what prepare.py wrote")
    parser.add_argument("run", type=pathlib.Path, help="the folder to write to")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of a step, a multiple of 1024 [4096]")
    parser.add_argument("--warm-up", type=int, default=100, help="steps until the learning rate is reached [100]")
    parser.add_argument("--decay", type=int, help="steps over which it falls to zero [half of all]")
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--evaluate-every", type=int, default=50, help="steps between held-out losses and saved states")
    parser.add_argument("--evaluate-chunks", type=int, default=128, help="how many chunks the held-out loss is over")
    begin = parser.add_mutually_exclusive_group()
    begin.add_argument("--init", type=pathlib.Path, help="a checkpoint to start from, instead of at random")
    begin.add_argument("--resume", action="store_true", help="go on from the run's state.pt")
    arguments = parser.parse_args()
    arguments.decay = arguments.decay or max(1, arguments.steps // 2)

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    arguments.run.mkdir(parents=True, exist_ok=True)
    train, held_out = (np.load(arguments.data / f"{name}.npy") for name in ("train", "held-out"))
    model = RwkvX(dropout=arguments.dropout)
    optimizer = optimizer_of(model, arguments)
    random = np.random.default_rng(arguments.seed)
    step, best = 0, float("inf")
    state_file, curve = arguments.run / "state.pt", arguments.run / "loss.csv"
    if arguments.resume:
        state = torch.load(state_file, weights_only=False)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        random.bit_generator.state = state["random"]
        step, best = state["step"], state["best"]
    else:
        if arguments.init:
            load_checkpoint(model, arguments.init)
        curve.write_text("step,learning_rate,training_loss,held_out_loss\n")

    def evaluate(rate, losses):
        nonlocal best
        model.eval()
        held_out_loss = in_chunks(model, held_out, limit=arguments.evaluate_chunks)
        model.train()
        training_loss = f"{np.mean(losses):.4f}" if losses else ""
        with curve.open("a") as file:
            file.write(f"{step},{rate:.3g},{training_loss},{held_out_loss:.4f}\n")
        print(f"step {step}: training {training_loss or '-'}, held out {held_out_loss:.4f}", flush=True)
        if held_out_loss < best:
            best = held_out_loss
            save_checkpoint(model, arguments.run / "best.safetensors")

    if step == 0:
        evaluate(0.0, [])
    losses, started, first = [], time.monotonic(), step
    while step < arguments.steps:
        rate = learning_rate(step, arguments)
        for group in optimizer.param_groups:
            group["lr"] = rate
        inputs, targets = batch(train, random, arguments.tokens)
        loss = F.cross_entropy(model(inputs).reshape(-1, VOCABULARY), targets.reshape(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        losses.append(loss.item())
        if step % 10 == 0:
            seconds = (time.monotonic() - started) / (step - first)
            print(f"step {step}: training {losses[-1]:.3f}, lr {rate:.2e}, {seconds:.2f} s a step", flush=True)

        if step % arguments.evaluate_every == 0 or step == arguments.steps:
            evaluate(rate, losses)
            losses = []
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "random": random.bit_generator.state,
                "step": step,
                "best": best,
            }
            torch.save(state, state_file.with_suffix(".part"))
            os.replace(state_file.with_suffix(".part"), state_file)


if __name__ == "__main__":
    main()
