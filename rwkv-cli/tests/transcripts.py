"""Runs the commands of docs/api.md against a server, and compares what they print with what the page says.

    python3 rwkv-cli/tests/transcripts.py target/release/rwkv target/recall.rwkv [--write]

What is another one each time (ids and times) is written as `...` in the page. `--write` writes the page anew.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "api.md"
ADDRESS = "127.0.0.1:8080"


def run(command, address):
    """The output of a command, with what changes left out."""
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command.replace(ADDRESS, address)],
        capture_output=True, text=True, check=True,
    )
    output = re.sub(r'"id":"(chatcmpl|cmpl)-[0-9a-f]+"', r'"id":"\1-..."', ran.stdout)
    return re.sub(r'"created":\d+', '"created":...', output).rstrip("\n")


def renewed(block, address):
    """A block of the page with the outputs of its commands."""
    commands = [line[2:] for line in block.splitlines() if line.startswith("$ ")]
    return "".join(f"$ {command}\n{run(command, address)}\n" for command in commands)


def main():
    program, model, *options = sys.argv[1:]
    page = PAGE.read_text()
    with tempfile.TemporaryDirectory() as states:
        command = [program, "serve", model, "--port", "0", "--state-dir", states]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            address = None
            for line in server.stderr:
                if found := re.search(r"listening at http://(\S+)", line):
                    address = found[1]
                if line.startswith("ready: "):
                    break
            assert address, f"the server ended with {server.wait()}"
            block = re.compile(r"(?<=```console\n)(?:\$ curl.*?)(?=```)", re.DOTALL)
            new = block.sub(lambda found: renewed(found[0], address), page)
        finally:
            server.terminate()
            server.communicate()
    if "--write" in options:
        PAGE.write_text(new)
    elif new != page:
        expected = pathlib.Path(tempfile.mkstemp(suffix=".md")[1])
        expected.write_text(new)
        subprocess.run(["diff", "-u", PAGE, expected], check=False)
        raise SystemExit(f"{PAGE} does not show what the server answers (--write writes it anew)")
    print(f"{PAGE.name}: {page.count('$ curl')} commands print what the page says")


main()
