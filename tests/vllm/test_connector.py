"""The connector's way with one request: what it reads, and what it changes before vLLM goes on."""

from functools import partial
from typing import Any

import pytest
from vllm import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

from kvcustody.namespace import Adapter, AdapterFailure
from kvcustody.vllm import connector

pytestmark = pytest.mark.engine


@pytest.fixture
def make_request() -> Any:
    init_none_hash(sha256)
    return partial(
        Request,
        request_id="r",
        prompt_token_ids=list(range(64)),
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
        cache_salt="salt",
        block_hasher=get_request_block_hasher(16, sha256),
    )


class Revisions:
    """Records what the connector asks."""

    def __init__(self) -> None:
        self.asked: list[tuple[Adapter, bool]] = []

    def find(self, adapter: Adapter, *, in_place: bool) -> str | AdapterFailure:
        self.asked.append((adapter, in_place))
        return AdapterFailure.IN_PLACE if in_place else "a1" * 32


def test_an_adapters_content_is_part_of_every_block_hash(make_request: Any) -> None:
    lora = LoRARequest("style", 1, "/adapters/style")
    plain, one, two, again = (make_request(lora_request=lora) for _ in range(4))
    assert len(plain.block_hashes) == 4
    assert plain.block_hashes == one.block_hashes, "vLLM hashes only name and path"
    for request, content in ((one, "a1"), (two, "b2"), (again, "a1")):
        connector._salt_blocks(request, "salt", content * 32)
        assert len(request.block_hashes) == 4
    assert one.block_hashes == again.block_hashes
    assert not set(plain.block_hashes) & set(one.block_hashes)
    assert not set(two.block_hashes) & set(one.block_hashes)
    one.append_output_token_ids(list(range(16)))
    assert len(one.block_hashes) == 5


def test_an_adapter_is_looked_up_as_the_request_names_it(make_request: Any) -> None:
    revisions: Any = Revisions()
    look_up = partial(connector._adapter_revision, revisions=revisions, adapts_media=False)
    assert look_up(make_request()) is None
    request = make_request(lora_request=LoRARequest("style", 7, "/adapters/style"))
    assert look_up(request) == "a1" * 32
    request = make_request(
        lora_request=LoRARequest(
            "style", 7, "/adapters/style", load_inplace=True, is_3d_lora_weight=True
        )
    )
    assert look_up(request) is AdapterFailure.IN_PLACE
    assert revisions.asked == [
        (Adapter(7, "style", "/adapters/style"), False),
        (Adapter(7, "style", "/adapters/style", fused=True), True),
    ]


def test_media_that_an_adapter_encodes_get_no_custody(make_request: Any) -> None:
    revisions: Any = Revisions()
    look_up = partial(connector._adapter_revision, revisions=revisions, adapts_media=True)
    request = make_request(lora_request=LoRARequest("style", 7, "/adapters/style"))
    assert look_up(request) == "a1" * 32
    request.mm_features = ["a picture"]
    assert look_up(request) is AdapterFailure.MEDIA
    assert look_up(request, adapts_media=False) == "a1" * 32
    request.lora_request = None
    assert look_up(request) is None


def test_a_salt_decides_every_block_hash(make_request: Any) -> None:
    one, other, again = (make_request(cache_salt=None) for _ in range(3))
    unsalted = set(one.block_hashes)
    connector._salt_blocks(one, "acme", None)
    connector._salt_blocks(other, "globex", None)
    connector._salt_blocks(again, "acme", None)
    assert one.block_hashes == again.block_hashes
    assert not set(one.block_hashes) & unsalted
    assert not set(one.block_hashes) & set(other.block_hashes)


def test_an_adapter_named_like_a_salt_collides_with_none(make_request: Any) -> None:
    salt = "s" * 43
    salted, named = make_request(), make_request(lora_request=LoRARequest(salt, 1, "/a"))
    connector._salt_blocks(salted, salt, None)
    connector._salt_blocks(named, "other", "a1" * 32)
    assert not set(salted.block_hashes) & set(named.block_hashes)


def test_only_allowed_parameters_stay_with_a_request(make_request: Any) -> None:
    parameters = {"kvcustody": "proof", "max_load_tokens": 256, "remote_host": "10.0.0.9"}
    extra = {"kv_transfer_params": parameters, "other": 1}
    shared = SamplingParams(max_tokens=1, extra_args=extra)
    request = make_request(sampling_params=shared)
    assert request.kv_transfer_params == parameters
    connector._forget_parameters(request, frozenset({"max_load_tokens"}))
    assert request.kv_transfer_params == {"max_load_tokens": 256}
    assert request.sampling_params.extra_args == {"other": 1}
    assert shared.extra_args == extra, "the requests of one prompt share it"
    request = make_request(sampling_params=shared)
    connector._forget_parameters(request, frozenset())
    assert request.kv_transfer_params is None
