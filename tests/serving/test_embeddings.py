"""The route of embeddings: OpenAI's words, floats or base64, one text or many; refusals by name."""

import base64
import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")
tokenizers = pytest.importorskip("tokenizers")

from starlette.testclient import TestClient

import hetero_tvm
from hetero_tvm.serving.embeddings import EmbeddingServer
from tests import tiny_bert
from tests.generation.test_text import write_tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "tiny"
    shutil.copytree(tiny_bert.built(), folder)
    write_tokenizer(tokenizers, folder)
    return hetero_tvm.load_embedding_model(folder)


@pytest.fixture(scope="module")
def client(model):
    with TestClient(EmbeddingServer(model, "tiny").app()) as client:
        yield client


def ask(client, **body):
    return client.post("/v1/embeddings", json=body)


def test_texts_and_tokens(client, model):
    expected = model.embed_tokens([[5, 6], [7]])
    for given in (["w5 w6", "w7"], [[5, 6], [7]]):
        body = ask(client, input=given, model="tiny").json()
        assert [one["index"] for one in body["data"]] == [0, 1]
        np.testing.assert_array_equal(np.float32([one["embedding"] for one in body["data"]]), expected)
        assert body["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
        assert (body["object"], body["model"], body["data"][0]["object"]) == ("list", "tiny", "embedding")
    for given in ("w5 w6", [5, 6]):
        [one] = ask(client, input=given).json()["data"]
        np.testing.assert_array_equal(np.float32(one["embedding"]), expected[0])


def test_many_texts_of_several_clients(client, model):
    texts = [[n % 97, 5] for n in range(70)]
    expected = model.embed_tokens(texts)
    with ThreadPoolExecutor(3) as pool:
        for response in pool.map(lambda _: ask(client, input=texts), range(3)):
            got = [one["embedding"] for one in response.json()["data"]]
            np.testing.assert_array_equal(np.float32(got), expected)


def test_base64_fewer_dimensions_and_prompts(client, model):
    [one] = ask(client, input="w5", encoding_format="base64", dimensions=4).json()["data"]
    numbers = np.frombuffer(base64.b64decode(one["embedding"]), "<f4")
    np.testing.assert_array_equal(numbers, model.embed_tokens([[5]], 4)[0])
    [one] = ask(client, input="w5", prompt_name="query").json()["data"]
    np.testing.assert_array_equal(np.float32(one["embedding"]), model.embed_tokens([[7, 5]])[0])


def test_long_texts_are_cut_only_when_asked(client):
    long = " ".join(["w5"] * 17)
    refused = ask(client, input=["w5", long])
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"
    assert "input[1] has 17" in refused.json()["error"]["message"]
    for most, count in ((-1, 16), (3, 3), (99, 16)):
        assert ask(client, input=long, truncate_prompt_tokens=most).json()["usage"]["total_tokens"] == count


@pytest.mark.parametrize(
    "body, problem",
    [
        ({}, "input is a text"),
        ({"input": []}, "input is a text"),
        ({"input": ["w5", ""]}, r"input\[1\] is empty"),
        ({"input": ["w5", 7]}, r"input\[1\] is neither"),
        ({"input": "w5", "dimensions": 13}, "1 to 12"),
        ({"input": "w5", "encoding_format": "int8"}, "float, base64"),
        ({"input": "w5", "prompt_name": "nothing"}, "'query'"),
        ({"input": "w5", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": [97]}, "token 97"),
        ({"input": ["w5"] * 2049}, "2048"),
    ],
)
def test_refusals(client, body, problem):
    response = ask(client, **body)
    assert response.status_code == 400
    assert re.search(problem, response.json()["error"]["message"])


def test_names_keys_and_routes(client, model):
    assert ask(client, input="w5", model="other").status_code == 404
    assert client.get("/v1/models").json()["data"][0]["max_model_len"] == 16
    assert client.get("/health").json() == {"status": "ok"}
    refused = client.post("/v1/completions", json={"prompt": "w5"})
    assert refused.status_code == 404
    assert "there are POST /v1/embeddings" in refused.json()["error"]["message"]
    with TestClient(EmbeddingServer(model, "tiny", "secret").app()) as guarded:
        assert ask(guarded, input="w5").status_code == 401
        headers = {"Authorization": "Bearer secret"}
        assert guarded.post("/v1/embeddings", json={"input": "w5"}, headers=headers).status_code == 200
