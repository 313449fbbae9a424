"""Draws loss.csv as loss.svg.

    python3 curve.py ../loss.csv ../loss.svg
"""

import argparse
import csv
import pathlib

WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 640, 300, 52, 16, 40
SERIES = {"training_loss": ("training", "#9aa4b2"), "held_out_loss": ("held out", "#c2410c")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("curve", type=pathlib.Path)
    parser.add_argument("svg", type=pathlib.Path)
    arguments = parser.parse_args()

    with arguments.curve.open() as file:
        rows = list(csv.DictReader(file))
    lines = {name: [(int(row["step"]), float(row[name])) for row in rows if row[name]] for name in SERIES}
    losses = [loss for line in lines.values() for _, loss in line]
    low, high, last = min(losses), max(losses), max(int(row["step"]) for row in rows)
    margin = (high - low) * 0.08 or 0.1
    low, high = low - margin, high + margin

    def x(step):
        return LEFT + (WIDTH - LEFT - 16) * step / last

    def y(loss):
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - loss) / (high - low)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
    ]
    for tick in range(5):
        loss = low + (high - low) * tick / 4
        out.append(f'<path d="M{LEFT} {y(loss):.1f}H{WIDTH - 16}" stroke="#e5e7eb"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y(loss) + 4:.1f}" text-anchor="end" fill="#4b5563">{loss:.2f}</text>')
        step = last * tick // 4
        out.append(f'<text x="{x(step):.1f}" y="{HEIGHT - 22}" text-anchor="middle" fill="#4b5563">{step}</text>')
    out.append(f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 6}" text-anchor="middle" fill="#4b5563">step; nats a token</text>')
    for at, (name, (label, colour)) in enumerate(SERIES.items()):
        points = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in lines[name])
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out.append(f'<text x="{WIDTH - 24}" y="{TOP + 14 + 16 * at}" text-anchor="end" fill="{colour}">{label}</text>')
    arguments.svg.write_text("\n".join(out + ["</svg>"]) + "\n")


if __name__ == "__main__":
    main()
