"""No secret leaves a node, and what is none stays readable."""

import json
import string
import time
from urllib.parse import quote

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.masking import MASK, VALUE_CHARS, masker

WORD = st.text(string.ascii_letters + string.digits, min_size=20, max_size=40)
ANYTHING = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=60)
PLANTED = (
    "https://user:{}@example.org/x", "postgres://{}@db/x", "git+https://{}:x-oauth@github.com/a/b",
    "Authorization: Bearer {}", "authorization='Basic {}'", '{{"Authorization": "Token {}"}}',
    "password={}", "DB_PASSWORD: '{}'", '"api_key": "{}"', "--api-key={}", "secret = {}",
    "AWS_SECRET_ACCESS_KEY={}", "HF_TOKEN={}", "token: x{}", "passphrase='{} with words'",
    "https://example.org/?a=1&X-Amz-Signature={}&b=2", "https://example.org/?access_token={}",
    "key hf_{}", "using AKIA{} now", "ghp_{}", "glpat-{}", "sk-proj-{}", "xoxb-{}",
    "eyJhbGciOi.{}.sig", "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\n{}", "{}\n-----END PRIVATE KEY-----",
)  # fmt: skip


@given(form=st.sampled_from(PLANTED), secret=WORD, before=ANYTHING, after=ANYTHING)
def test_a_planted_secret_never_survives(form: str, secret: str, before: str, after: str) -> None:
    secret = secret.upper() if "AKIA" in form else secret
    assume(secret not in after)
    head = "" if form.startswith("{}\n") else f"{before}\n"
    masked = masker({})(f"{head}{form.format(secret)}\n{after}")
    assert secret not in masked.removeprefix(head)
    assert MASK in masked


@given(
    name=st.sampled_from(("DB_PASSWORD", "WANDB_API_KEY", "my_secret", "HF_TOKEN", "SSH_KEY")),
    value=st.text(st.characters(codec="utf-8"), min_size=VALUE_CHARS, max_size=40),
    before=ANYTHING, after=ANYTHING,
    way=st.sampled_from((str, quote, repr, json.dumps, lambda value: quote(value, safe=""))),
)  # fmt: skip
def test_the_value_of_a_secret_variable_never_survives_however_it_is_written(
    name: str, value: str, before: str, after: str, way: "type[str]"
) -> None:
    written = way(value)
    assume(len(value.strip()) >= VALUE_CHARS and value not in f"{before} {after}{MASK * 9}")
    masked = masker({name: value})(f"{before} {written} {after}")
    assert value not in masked


def test_each_line_of_a_secret_with_several_is_one() -> None:
    masked = masker({"TLS_PRIVATE_KEY": "first-line\nsecond-line"})("a second-line b")
    assert masked == f"a {MASK} b"


@pytest.mark.parametrize(
    "line",
    [
        "step 40 loss 1.2345 tokens: 1048576 tokens_per_s=52311.5",
        "TOKENIZERS_PARALLELISM=true and n_tokens = 128, token_id=50256)",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB",
        '  File "/srv/code/train.py", line 12, in <module>',
        "connect to tcp://10.0.0.1:29500 failed, see https://pytorch.org/docs/stable/elastic.html",
        "user a@b.org reads s3://bucket/key/part-00001 at 4f2a9c1e0b7d4f2a9c1e0b7d4f2a9c1e0b7d4f2a",
        "disk /srv/code: 3.1 of 10.0 GiB free, key in /run/secrets/key",
        "KeyError: 'layers.0.attention.key.weight'",
    ],
)
def test_what_training_prints_stays_as_it_is(line: str) -> None:
    plain = {"HOME": "/srv/code", "PWD": "/srv/code", "A_KEY_FILE": "/run/secrets/key"}
    assert masker({"TOKENIZERS_PARALLELISM": "true", **plain})(line) == line


def test_the_place_of_a_masked_url_stays_readable() -> None:
    masked = masker({})("cannot open https://me:pa:ss@w/ord@example.org:8080/x")
    assert masked == "cannot open https://me:***@example.org:8080/x"


@pytest.mark.parametrize("text", ["token", "://a:", "?key", "secret ", 'password="', "eyJaaaaaa."])
def test_no_text_takes_long(text: str) -> None:
    """An agent masks in its only thread; quadratic time would be seconds."""
    began = time.process_time()
    masker({"A_TOKEN": "x" * 40})((text * 16_384)[:16_384])
    assert time.process_time() - began < 1.0
