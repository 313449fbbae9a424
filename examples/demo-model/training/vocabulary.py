"""World vocabularies: reading, writing, and greedy encoding.

A vocabulary file has one token a line, `id literal length`: the literal is a Python string, or a bytes literal where the
token is not valid UTF-8, and the length counts bytes. Id 0 is the end of a text and is not in the file.
"""

import ast

END_OF_TEXT = 0


class Vocabulary:
    """Tokens by id, and the encoder that takes the longest token at each position."""

    def __init__(self, tokens):
        """`tokens`: the bytes of every token by id, without id 0."""
        self.tokens = tokens
        self.ids = {token: id for id, token in tokens.items()}
        lengths = {}
        for token in self.ids:
            if len(token) > 1:
                lengths.setdefault(token[:2], set()).add(len(token))
        # Which lengths are worth trying, longest first, given the next two bytes.
        self.lengths = {start: sorted(found, reverse=True) for start, found in lengths.items()}

    @classmethod
    def read(cls, path):
        tokens = {}
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                line = line.rstrip("\r\n")
                first, last = line.index(" "), line.rindex(" ")
                literal = ast.literal_eval(line[first + 1 : last])
                token = literal if isinstance(literal, bytes) else literal.encode()
                if len(token) != int(line[last:]):
                    raise ValueError(f"{path}:{number}: {len(token)} bytes found, {line[last + 1 :]} stated")
                tokens[int(line[:first])] = token
        return cls(tokens)

    def write(self, path):
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            for id, token in sorted(self.tokens.items()):
                try:
                    literal = repr(token.decode())
                except UnicodeDecodeError:
                    literal = repr(token)
                file.write(f"{id} {literal} {len(token)}\n")

    def encode(self, text):
        """The ids of `text` (bytes). All 256 single bytes are tokens, so every text can be encoded."""
        ids, lengths, out, at = self.ids, self.lengths, [], 0
        while at < len(text):
            for length in lengths.get(text[at : at + 2], ()):
                id = ids.get(text[at : at + length])
                if id is not None and at + length <= len(text):
                    break
            else:
                id, length = ids[text[at : at + 1]], 1
            out.append(id)
            at += length
        return out

    def decode(self, ids):
        return b"".join(self.tokens.get(id, b"") for id in ids)
