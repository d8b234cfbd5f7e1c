import json
import logging
import time
from typing import Any

import pytest

from answering_server import AnsweringServer, closed_port, silent_server
from kvcustody.errors import ConfigurationError, CustodyError, UnavailableError
from kvcustody.sealing.providers import KeyContext, WrappedKeyError
from kvcustody.sealing.providers.aws_kms import AwsKmsProvider
from moto_server import CREDENTIALS, REGION, MotoServer

pytestmark = pytest.mark.service

SECRET = bytes(range(32))
CONTEXT = KeyContext("data key", "one")
# Two attempts of 1 s + 2 s at most, and a pause of up to 1 s.
LONGEST_SECONDS = 7.5


@pytest.fixture
def key(aws: MotoServer) -> str:
    return aws.create_key()


def provider(server: MotoServer | str, key: str, **arguments: Any) -> AwsKmsProvider:
    url = server if isinstance(server, str) else server.url
    return AwsKmsProvider(key, region=REGION, endpoint=url, **arguments)


def key_id(arn: str) -> str:
    """What moto's administration takes, unlike AWS's, where an ARN does as well."""
    return arn.rpartition("/")[2]


def refusal(provider: AwsKmsProvider, kind: type[CustodyError]) -> str:
    """The text of the error that wrapping raises."""
    with pytest.raises(kind) as caught:
        provider.wrap(SECRET, CONTEXT)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("aws-kms")
    for secret in (SECRET.decode(), SECRET.hex(), CREDENTIALS["AWS_SECRET_ACCESS_KEY"]):
        assert secret not in repr(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    return text


def test_the_root_is_the_keys_arn_whatever_names_it(aws: MotoServer, key: str) -> None:
    aws.client("kms").create_alias(AliasName="alias/the-root", TargetKeyId=key_id(key))
    names = (key, key_id(key), "alias/the-root", "arn:aws:kms:" + key[12:])
    assert {provider(aws, name).root for name in names} == {f"aws-kms:{key}"}


def test_the_region_comes_from_the_arn(aws: MotoServer, key: str) -> None:
    assert AwsKmsProvider(key, endpoint=aws.url).root == f"aws-kms:{key}"


def test_the_context_reaches_aws_as_fields_and_the_key_is_named_in_both_directions(
    aws: MotoServer, key: str
) -> None:
    wrapped = provider(aws, key).wrap(SECRET, CONTEXT)
    context = {"kvcustody-purpose": "data key", "kvcustody-subject": "one"}
    kms = aws.client("kms")
    answer = kms.decrypt(KeyId=key, CiphertextBlob=wrapped, EncryptionContext=context)
    assert answer["Plaintext"] == SECRET
    with AnsweringServer(
        200, {"KeyMetadata": {"Arn": key, "KeySpec": "SYMMETRIC_DEFAULT"}}
    ) as aws2:
        asked = provider(aws2.url, "alias/a", grant_tokens=["token"])
        for use in (lambda: asked.wrap(SECRET, CONTEXT), lambda: asked.unwrap(wrapped, CONTEXT)):
            with pytest.raises(UnavailableError):
                use()
    described, encrypt, decrypt = aws2.requests
    assert described == {"KeyId": "alias/a", "GrantTokens": ["token"]}
    for request in (encrypt, decrypt):
        assert request["KeyId"] == key
        assert request["EncryptionContext"] == context
        assert request["GrantTokens"] == ["token"]


def test_an_alias_that_is_pointed_elsewhere_takes_a_restart(aws: MotoServer, key: str) -> None:
    kms, other = aws.client("kms"), aws.create_key()
    kms.create_alias(AliasName="alias/moving", TargetKeyId=key_id(key))
    running = provider(aws, "alias/moving")
    wrapped = running.wrap(SECRET, CONTEXT)
    kms.update_alias(AliasName="alias/moving", TargetKeyId=key_id(other))
    assert running.unwrap(wrapped, CONTEXT) == SECRET
    # Of a key that the caller has, AWS says IncorrectKeyException, and moto AccessDeniedException.
    with pytest.raises((WrappedKeyError, ConfigurationError)):
        provider(aws, "alias/moving").unwrap(wrapped, CONTEXT)


@pytest.mark.parametrize(
    "answer",
    [
        {"__type": "IncorrectKeyException"},
        {"__type": "InvalidCiphertextException"},
        {
            "__type": "AccessDeniedException",
            "message": "The ciphertext refers to a customer master key that does not exist, …",
        },
    ],
)
@pytest.mark.usefixtures("aws")
def test_a_key_that_another_key_wrapped_is_told_from_a_denial(answer: dict[str, Any]) -> None:
    with AnsweringServer(400, answer) as double:
        used = provider(double.url, "alias/a")
        used._arn = "arn:aws:kms:eu-central-1:123456789012:key/a"
        with pytest.raises(WrappedKeyError, match="name the key that belongs to the registry"):
            used.unwrap(b"wrapped", CONTEXT)


def test_a_key_out_of_use_says_how_to_get_it_back_and_works_again_then(
    aws: MotoServer, key: str
) -> None:
    kms, used = aws.client("kms"), provider(aws, key)
    wrapped = used.wrap(SECRET, CONTEXT)
    kms.disable_key(KeyId=key_id(key))
    disabled = provider(aws, key)
    assert "its state is Disabled; enable it" in refusal(disabled, ConfigurationError)
    kms.schedule_key_deletion(KeyId=key_id(key), PendingWindowInDays=7)
    assert "cancel its deletion and enable it" in refusal(disabled, ConfigurationError)
    kms.cancel_key_deletion(KeyId=key_id(key))
    kms.enable_key(KeyId=key_id(key))
    assert disabled.unwrap(wrapped, CONTEXT) == SECRET


def test_a_key_that_does_not_exist_is_named(aws: MotoServer) -> None:
    text = refusal(provider(aws, "alias/nobody"), ConfigurationError)
    assert text == (
        "aws-kms: DescribeKey with key alias/nobody: no such key in this account and region; "
        "correct keys.key_id"
    )


def test_a_key_for_signing_is_refused(aws: MotoServer) -> None:
    key = aws.create_key(KeySpec="RSA_2048", KeyUsage="SIGN_VERIFY")
    with pytest.raises(ConfigurationError, match="create one of key spec SYMMETRIC_DEFAULT"):
        provider(aws, key).wrap(SECRET, CONTEXT)


def test_a_caller_without_permission_is_told_which(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in CREDENTIALS.items():
        monkeypatch.setenv(variable, value)
    with MotoServer() as aws:
        key, iam = aws.create_key(), aws.client("iam")
        iam.create_user(UserName="engine")
        pair = iam.create_access_key(UserName="engine")["AccessKey"]
        policy = {"Effect": "Allow", "Action": ["kms:DescribeKey", "kms:Encrypt"], "Resource": "*"}
        iam.put_user_policy(
            UserName="engine",
            PolicyName="some",
            PolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": policy}),
        )
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", pair["AccessKeyId"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", pair["SecretAccessKey"])
        used = provider(aws, key)
        wrapped = used.wrap(SECRET, CONTEXT)
        aws.check_permissions_after("0")
        assert used.wrap(SECRET, CONTEXT) != wrapped
        with pytest.raises(ConfigurationError) as denied:
            used.unwrap(wrapped, CONTEXT)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7UNKNOWN")
        unknown = refusal(provider(aws, key), ConfigurationError)
    assert str(denied.value) == (
        f"aws-kms: Decrypt with key {key}: access denied; allow kms:Decrypt in the policy of the "
        "key or the role"
    )
    assert "kms:DescribeKey" in unknown


def test_a_grant_token_of_aws_is_taken(aws: MotoServer, key: str) -> None:
    grant = aws.client("kms").create_grant(
        KeyId=key,
        GranteePrincipal="arn:aws:iam::123456789012:role/engine",
        Operations=["Encrypt", "Decrypt", "DescribeKey"],
    )
    used = provider(aws, key, grant_tokens=[grant["GrantToken"]])
    assert used.unwrap(used.wrap(SECRET, CONTEXT), CONTEXT) == SECRET


@pytest.mark.parametrize(
    ("status", "code", "kind", "remedy"),
    [
        (400, "ThrottlingException", UnavailableError, "try again"),
        (429, "Whatever", UnavailableError, "try again"),
        (500, "KMSInternalException", UnavailableError, "try again"),
        (503, "DependencyTimeoutException", UnavailableError, "try again"),
        (400, "ExpiredTokenException", UnavailableError, "expired; boto3 looks in"),
        (400, "AccessDeniedException", ConfigurationError, "allow kms:DescribeKey"),
        (400, "DisabledException", ConfigurationError, "enable it"),
        (400, "KMSInvalidStateException", ConfigurationError, "cancel its deletion"),
        (400, "KeyUnavailableException", ConfigurationError, "check its key store"),
        (400, "InvalidGrantTokenException", ConfigurationError, "correct keys.grant_tokens"),
        (400, "UnrecognizedClientException", ConfigurationError, "credentials are wrong"),
        (400, "ValidationException", ConfigurationError, "AWS refuses it"),
    ],
)
def test_what_a_double_of_aws_refuses_has_its_remedy(
    aws: MotoServer, status: int, code: str, kind: type[CustodyError], remedy: str
) -> None:
    del aws  # for its credentials
    answer = {"__type": code, "message": "Plaintext is secret"}
    with AnsweringServer(status, answer) as double:
        text = refusal(provider(double.url, "alias/a"), kind)
    assert remedy in text
    assert "Plaintext is secret" not in text
    assert len(double.requests) <= 2


@pytest.mark.parametrize(
    "content", [{}, b"<html>", b"", {"KeyMetadata": {"Arn": "a", "KeySpec": "SYMMETRIC_DEFAULT"}}]
)
@pytest.mark.usefixtures("aws")
def test_a_server_that_is_not_aws_is_unavailable(content: dict[str, Any] | bytes) -> None:
    with AnsweringServer(200, content) as double:
        assert "is not AWS KMS" in refusal(provider(double.url, "alias/a"), UnavailableError)


@pytest.mark.usefixtures("aws")
def test_a_key_whose_arn_is_long_has_a_short_root() -> None:
    arn = "arn:aws:kms:eu-central-1:123456789012:key/" + "x" * 100
    metadata = {"Arn": arn, "KeySpec": "SYMMETRIC_DEFAULT"}
    with AnsweringServer(200, {"KeyMetadata": metadata}) as double:
        root = provider(double.url, "alias/a").root
        assert len(root) <= 128
        assert root == provider(double.url, "alias/b").root


def test_a_server_that_freezes_is_given_up_and_used_again_later(aws: MotoServer, key: str) -> None:
    used = provider(aws, key)
    wrapped = used.wrap(SECRET, CONTEXT)
    aws.freeze()
    try:
        started = time.monotonic()
        text = refusal(used, UnavailableError)
        assert time.monotonic() - started < LONGEST_SECONDS
    finally:
        aws.thaw()
    assert "check the network and keys.endpoint" in text
    assert used.unwrap(wrapped, CONTEXT) == SECRET


@pytest.mark.usefixtures("aws")
def test_a_server_that_is_down_or_never_answers_is_given_up() -> None:
    started = time.monotonic()
    assert "EndpointConnectionError" in refusal(provider(closed_port(), "a"), UnavailableError)
    with silent_server() as url:
        assert "ReadTimeoutError" in refusal(provider(url, "a"), UnavailableError)
    assert time.monotonic() - started < LONGEST_SECONDS + 2


def test_missing_credentials_say_where_boto3_looks(
    aws: MotoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    text = refusal(provider(aws, "alias/a"), UnavailableError)
    assert "no valid AWS credentials; boto3 looks in AWS_ACCESS_KEY_ID" in text


def test_a_missing_region_or_profile_is_a_mistake_of_configuration(
    aws: MotoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match=r"no region; set keys\.region"):
        AwsKmsProvider("alias/a", endpoint=aws.url)
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(ConfigurationError, match="nobody"):
        provider(aws, "alias/a")


@pytest.mark.parametrize("endpoint", ["http://kms.example", "kms.example", "file:///etc/passwd"])
def test_keys_are_never_sent_in_the_clear(endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match="must begin with https://"):
        provider(endpoint, "alias/a")


def test_debugging_boto3_shows_no_key(
    aws: MotoServer, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    used = provider(aws, key)
    used.unwrap(used.wrap(SECRET, CONTEXT), CONTEXT)
    caplog.clear()
    used.unwrap(used.wrap(SECRET, CONTEXT), CONTEXT)
    assert [record for record in caplog.records if record.name.startswith("boto")] == []
    aws.client("kms").encrypt(KeyId=key, Plaintext=SECRET)
    assert "AAECAwQFBgcICQoL" in caplog.text, "others' debugging goes on, and shows what we hide"
