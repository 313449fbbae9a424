"""Makes a picture of what a command shows at a terminal.

    python3 terminal.py demo.svg cargo run --release

Runs the command at a pseudo-terminal, keeps the screens that it went through, and draws them as an SVG that shows one after
another and then the last. Needs the PyPI package `pyte`, which plays the terminal.
"""

import argparse
import fcntl
import html
import os
import pty
import shlex
import struct
import termios
import time

import pyte

COLUMNS, ROWS = 100, 30
FRAMES = 12  # screens shown before the last one
SECONDS = 6.0  # how long they take together
CELL_WIDTH, CELL_HEIGHT, PADDING = 8.4, 18, 14
COLOURS = {"default": "#d4d4d8", "green": "#4ade80", "red": "#f87171", "cyan": "#67e8f9", "brown": "#facc15"}


def record(command):
    """The screens, as lists of rows of characters, and how the command ended."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm-256color"
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        os.execvp(command[0], command)
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    screens, last = [], 0.0
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:
            break
        if not data:
            break
        stream.feed(data)
        if time.monotonic() - last > 0.02:
            last = time.monotonic()
            screens.append(rows_of(screen))
    screens.append(rows_of(screen))
    return screens, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def rows_of(screen):
    return [[(screen.buffer[y][x].data, screen.buffer[y][x].fg, screen.buffer[y][x].bold) for x in range(COLUMNS)] for y in range(ROWS)]


def draw(rows, first_line):
    """The rows as text elements, runs of a style together."""
    out = []
    for y, row in enumerate(rows):
        at = 0
        while at < len(row):
            style, end = row[at][1:], at
            while end < len(row) and row[end][1:] == style:
                end += 1
            text = "".join(cell[0] for cell in row[at:end]).rstrip()
            if text:
                colour, bold = style
                x, top = PADDING + at * CELL_WIDTH, first_line + y * CELL_HEIGHT
                weight = ' font-weight="bold"' if bold else ""
                out.append(
                    f'<text x="{x:.1f}" y="{top}" fill="{COLOURS.get(colour, COLOURS["default"])}"{weight} '
                    f'textLength="{len(text) * CELL_WIDTH:.1f}" xml:space="preserve">{html.escape(text)}</text>'
                )
            at = end
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("svg")
    parser.add_argument("--shown", help="the command that the picture shows, if another one than that which runs")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    screens, code = record(arguments.command)
    if code != 0:
        parser.error(f"the command ended with {code}")

    chosen = [screens[len(screens) * i // FRAMES] for i in range(FRAMES)] + [screens[-1]]
    used = max(y for rows in chosen for y, row in enumerate(rows) if any(cell[0].strip() for cell in row)) + 1
    width = 2 * PADDING + COLUMNS * CELL_WIDTH
    height = 2 * PADDING + (used + 2) * CELL_HEIGHT
    step = SECONDS / FRAMES
    prompt = html.escape("$ " + (arguments.shown or shlex.join(arguments.command)))
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14">',
        f'<rect width="100%" height="100%" rx="8" fill="#18181b"/>',
        f'<text x="{PADDING}" y="{PADDING + 14}" fill="#4ade80" xml:space="preserve">{prompt}</text>',
    ]
    first_line = PADDING + 14 + int(1.5 * CELL_HEIGHT)
    for index, rows in enumerate(chosen):
        is_last = index == FRAMES
        # A viewer without animation shows the last screen.
        hidden = "" if is_last else ' visibility="hidden"'
        name, begin, length = ("hidden", 0, SECONDS) if is_last else ("visible", index * step, step)
        timing = f'<set attributeName="visibility" to="{name}" begin="{begin:.2f}s" dur="{length:.2f}s"/>'
        out.append(f"<g{hidden}>{timing}\n{draw(rows[:used], first_line)}\n</g>")
    out.append("</svg>")
    with open(arguments.svg, "w", encoding="utf-8") as file:
        file.write("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
