"""The official Python client against `rwkv serve`.

    python rwkv-cli/tests/openai_client.py target/release/rwkv target/recall.rwkv

Needs the PyPI package `openai`. It starts the server itself, with a key and a folder of states.
"""

import asyncio
import os
import re
import subprocess
import sys
import tempfile

import openai

KEY = "s3cret"
HELLO = [{"role": "user", "content": "Hello there!"}]


class Server:
    """A server that ends with the block."""

    def __init__(self, program, model):
        self.states = tempfile.TemporaryDirectory()
        command = [program, "serve", model, "--port", "0", "--name", "tiny", "--state-dir", self.states.name]
        environment = {**os.environ, "RWKV_API_KEY": KEY}
        self.process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    def __enter__(self):
        for line in self.process.stderr:
            if found := re.search(r"listening at (http://\S+)", line):
                self.url = found[1]
            if line.startswith("ready: "):
                return self
        raise SystemExit(f"the server ended with {self.process.wait()}")

    def __exit__(self, *_):
        self.process.terminate()
        self.process.communicate()
        self.states.cleanup()
        assert self.process.returncode == 0, self.process.returncode


def fails(kind, call, **expected):
    """Checks that a call raises this error, with these properties."""
    try:
        call()
    except kind as error:
        for name, value in expected.items():
            assert getattr(error, name) == value, (name, getattr(error, name), value)
        return error
    raise AssertionError(f"no {kind.__name__}")


def models(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").object == "model"
    fails(openai.NotFoundError, lambda: client.models.retrieve("other"), code="model_not_found")


def chat(client):
    create = client.chat.completions.create
    answer = create(model="tiny", messages=HELLO, max_completion_tokens=6, temperature=0)
    assert answer.object == "chat.completion" and answer.model == "tiny"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    again = create(model="tiny", messages=HELLO, max_completion_tokens=6, temperature=0)
    assert again.choices[0].message.content == answer.choices[0].message.content
    assert again.usage.prompt_tokens_details.cached_tokens > 0

    parts = [{"type": "text", "text": "Hello "}, {"type": "text", "text": "there!"}]
    same = create(model="tiny", messages=[{"role": "user", "content": parts}], max_tokens=6, temperature=0)
    assert same.choices[0].message.content == answer.choices[0].message.content

    several = create(model="tiny", messages=HELLO, max_tokens=6, n=3, seed=1, temperature=2, top_p=1)
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    repeated = create(model="tiny", messages=HELLO, max_tokens=6, n=3, seed=1, temperature=2, top_p=1)
    assert [c.message.content for c in repeated.choices] == [c.message.content for c in several.choices]

    scored = create(
        model="tiny", messages=HELLO, max_tokens=4, logprobs=True, top_logprobs=3, logit_bias={"46": 100, "0": -100}
    )
    content = scored.choices[0].logprobs.content
    assert len(content) == 4 and all(len(token.top_logprobs) == 3 for token in content)
    assert "".join(token.token for token in content) == scored.choices[0].message.content == "----"

    more = {"top_k": 1, "penalty_decay": 0.99, "something_unknown": [1, 2]}
    create(model="tiny", messages=HELLO, max_tokens=2, presence_penalty=0.1, frequency_penalty=0.1, extra_body=more)


def streams(client):
    create = client.chat.completions.create
    arguments = {"model": "tiny", "messages": HELLO, "max_tokens": 8, "temperature": 0, "logit_bias": {"0": -100}}
    whole = create(**arguments)
    chunks = list(create(**arguments, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert reasons[-1] == whole.choices[0].finish_reason and not any(reasons[:-1])
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens

    # The client's own accumulation of a stream.
    with client.chat.completions.stream(**arguments) as stream:
        for _ in stream:
            pass
        snapshot = stream.current_completion_snapshot
    assert snapshot.choices[0].message.content == whole.choices[0].message.content

    # Left early, again and again: more than there are places to run.
    for _ in range(12):
        with create(model="tiny", messages=HELLO, stream=True, logit_bias={"0": -100}, stop=["never"]) as stream:
            next(iter(stream))
    create(**arguments)


def completions(client):
    create = client.completions.create
    prompt = "A state remembers what it reads; weights do not. A state"
    answer = create(model="tiny", prompt=prompt, max_tokens=9, temperature=0)
    assert answer.object == "text_completion"
    assert answer.choices[0].text.startswith(" remembers what it reads; weights do not"), answer.choices[0].text
    stopped = create(model="tiny", prompt=prompt, max_tokens=9, temperature=0, stop=[";", "?"])
    assert (stopped.choices[0].text, stopped.choices[0].finish_reason) == (" remembers what it reads", "stop")
    two = create(model="tiny", prompt=[prompt, "Another"], max_tokens=2, temperature=0, echo=True)
    assert [choice.text.startswith(start) for choice, start in zip(two.choices, (prompt, "Another"))] == [True, True]
    parts = create(model="tiny", prompt=prompt, max_tokens=9, temperature=0, stream=True)
    assert "".join(part.choices[0].text for part in parts) == answer.choices[0].text
    scored = create(model="tiny", prompt="one two", max_tokens=1, logprobs=2, echo=True)
    logprobs = scored.choices[0].logprobs
    assert logprobs.token_logprobs[0] is None and logprobs.token_logprobs[1] < 0
    assert len(logprobs.tokens) == len(logprobs.text_offset) == len(logprobs.top_logprobs)


def embeddings(client):
    # The client asks for base64 where nothing else is said, and decodes it.
    answer = client.embeddings.create(model="tiny", input=["one", "two"])
    floats = client.embeddings.create(model="tiny", input="two", encoding_format="float")
    assert len(answer.data) == 2 and len(answer.data[0].embedding) == len(floats.data[0].embedding)
    assert all(abs(a - b) < 1e-6 for a, b in zip(answer.data[1].embedding, floats.data[0].embedding))


def errors(client, url):
    create = client.chat.completions.create
    error = fails(openai.BadRequestError, lambda: create(model="tiny", messages=HELLO, temperature=-1))
    assert error.param == "temperature" and error.type == "invalid_request_error"
    fails(openai.BadRequestError, lambda: create(model="tiny", messages=HELLO, temperature=-1, stream=True))
    image = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    fails(openai.BadRequestError, lambda: create(model="tiny", messages=[{"role": "user", "content": image}]))
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    fails(openai.BadRequestError, lambda: create(model="tiny", messages=HELLO, tools=[tool]), param="tools")
    stranger = openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0)
    fails(openai.AuthenticationError, stranger.models.list, code="invalid_api_key")


def states(client):
    more = {"save_state": "talk"}
    create = client.chat.completions.create
    first = create(model="tiny", messages=HELLO, max_tokens=4, temperature=0, extra_body=more)
    assert first.state["id"] == "talk"
    create(model="tiny", messages=HELLO, max_tokens=4, extra_body={"state": "talk"})
    absent = {"state": "absent"}
    fails(openai.NotFoundError, lambda: create(model="tiny", messages=HELLO, extra_body=absent))


async def together(url):
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY)

    async def one(number):
        prompt = f"The marker is m{number}x. The marker is"
        answer = await client.completions.create(model="tiny", prompt=prompt, max_tokens=6, temperature=0)
        return answer.choices[0].text

    alone = [await one(number) for number in range(16)]
    assert await asyncio.gather(*map(one, range(16))) == alone
    await client.close()


def main():
    with Server(*sys.argv[1:]) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=120)
        models(client)
        chat(client)
        streams(client)
        completions(client)
        embeddings(client)
        errors(client, server.url)
        states(client)
        asyncio.run(together(server.url))
    print(f"the client openai {openai.__version__} is content")


main()
