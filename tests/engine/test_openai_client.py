"""OpenAI's own client works unmodified: it needs to know nothing of the gateway."""

from collections.abc import Iterator

import openai
import pytest

from served_deployment import BLOCK, Served

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with _client(served, served.keys["acme"]) as client:
        yield client


def _client(served: Served, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.server.url}/v1", api_key=key, max_retries=0)


def test_chat_answers_and_reuses(served: Served, client: openai.OpenAI) -> None:
    prompt = served.prompt()
    cached = []
    for _ in range(2):
        answer = client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": prompt}], max_tokens=4
        )
        assert answer.usage is not None
        details = answer.usage.prompt_tokens_details
        cached.append((details and details.cached_tokens) or 0)
    assert cached[0] == 0
    assert cached[1] >= BLOCK


def test_chat_streams(served: Served, client: openai.OpenAI) -> None:
    prompt = served.prompt()
    with client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": prompt}],
        max_tokens=8,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        chunks = list(stream)
    assert chunks[-1].usage is not None
    assert len(chunks) > 4
    whole = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": prompt}],
        max_tokens=8,
        temperature=0,
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert whole.choices[0].message.content == text


def test_completions_and_responses_answer(served: Served, client: openai.OpenAI) -> None:
    completion = client.completions.create(model="demo", prompt=served.prompt(), max_tokens=4)
    assert completion.choices[0].finish_reason == "length"
    response = client.responses.create(model="demo", input=served.prompt(), max_output_tokens=4)
    assert response.id.startswith("resp_")
    assert client.responses.retrieve(response.id).id == response.id
    assert [model.id for model in client.models.list()] == ["demo"]


def test_another_tenant_finds_no_such_response(served: Served, client: openai.OpenAI) -> None:
    response = client.responses.create(model="demo", input=served.prompt(), max_output_tokens=4)
    with _client(served, served.keys["globex"]) as other, pytest.raises(openai.NotFoundError):
        other.responses.retrieve(response.id)
    assert client.responses.retrieve(response.id).id == response.id


def test_what_the_model_can_not_do_is_the_servers_own_error(client: openai.OpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as raised:
        client.embeddings.create(model="demo", input="text")
    assert raised.value.status_code in {400, 404, 501}


def test_refusals_are_the_exceptions_that_clients_expect(served: Served) -> None:
    with (
        _client(served, "kvc_000000000000_" + "A" * 43) as stranger,
        pytest.raises(openai.AuthenticationError) as raised,
    ):
        stranger.models.list()
    assert raised.value.code == "invalid_api_key"
    with (
        _client(served, served.keys["acme"]) as client,
        pytest.raises(openai.PermissionDeniedError) as denied,
    ):
        client.files.list()
    assert denied.value.code == "route_not_allowed"
