"""No secret reaches a file; what is no secret stays readable."""

import pytest

from openforge.redact import HIDDEN, Redactor, is_secret_name

SECRETS = [
    "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789",
    "sk-ant-api03-AbCdEfGhIjKlMnOpQrStUv",
    "ghp_0123456789abcdefghijABCDEFGHIJ",
    "github_pat_11ABCDEFG0123456789abcdefghij",
    "hf_abcdefghijklmnopqrstuvwxyz012345",
    "xoxb-123456789012-abcdefghij",
    "AKIAIOSFODNN7EXAMPLE",
    "AIzaSyA0123456789abcdefghijklmnopqrstuv",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmN",
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("around", ["{}", "key={}\n", '{{"x": "{}"}}', "see `{}`.", "a {} b"])
def test_a_key_of_a_known_shape_is_hidden_wherever_it_stands(secret: str, around: str) -> None:
    hidden = Redactor().text(around.format(secret))
    assert secret not in hidden
    assert HIDDEN in hidden


def test_given_secrets_are_hidden_in_every_string_also_url_encoded_and_as_keys() -> None:
    redact = Redactor(["pass/word+1", "of-7k2m9q"])
    tree = {"path": "/r/of-7k2m9q/v1", "q": ["?p=pass%2Fword%2B1", ("pass/word+1",)], "of-7k2m9q": 1}
    assert redact.tree(tree) == {"path": f"/r/{HIDDEN}/v1", "q": [f"?p={HIDDEN}", [HIDDEN]], HIDDEN: 1}


def test_of_two_given_secrets_the_longer_is_hidden_whole() -> None:
    assert Redactor(["secret-a", "secret-abc"]).text("x secret-abc y") == f"x {HIDDEN} y"


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("Authorization: Bearer abc123def456", f"Authorization: Bearer {HIDDEN}"),
        ("Proxy-Authorization: Basic dXNlcjpwYXNz", f"Proxy-Authorization: Basic {HIDDEN}"),
        ("Authorization: Basic dXNlcjpwYXNzMQ==", f"Authorization: Basic {HIDDEN}"),
        ("http://user:hunter22@host/x", f"http://{HIDDEN}@host/x"),
        ("api_key = 'abcdef123'", f"api_key = '{HIDDEN}'"),
        ("OPENAI_API_KEY=abcdef123 run", f"OPENAI_API_KEY={HIDDEN} run"),
        ('{"password": "hunter22"}', f'{{"password": "{HIDDEN}"}}'),
        ("?access_token=abcdef1&x=1", f"?access_token={HIDDEN}&x=1"),
    ],
)
def test_text_that_says_it_is_a_secret(text: str, hidden: str) -> None:
    assert Redactor().text(text) == hidden


def test_a_private_key_is_hidden_whole_also_when_its_end_is_missing() -> None:
    body = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\nabc\n"
    assert Redactor().text(f"a {body}-----END RSA PRIVATE KEY----- b") == f"a {HIDDEN} b"
    assert Redactor().text(f"a {body}") == f"a {HIDDEN}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "basic training for bearers",
        "the bearer of this",
        "max_tokens=2566666",
        "sk-1",
        "desk-top_computers and risk-averse",
        "http://host:8080/path@x",
        "token_ids: 123456",
        "secretary: somebody",
        "c0123456789abcdef",
    ],
)
def test_ordinary_text_stays(text: str) -> None:
    assert Redactor().text(text) == text


@pytest.mark.parametrize(
    "name",
    [
        "api_key",
        "apiKey",
        "X-Api-Key",
        "Authorization",
        "password",
        "client_secret",
        "accessToken",
        "HF_TOKEN",
        "Set-Cookie",
        "control_token",
    ],
)
def test_names_that_hold_secrets(name: str) -> None:
    assert is_secret_name(name)
    assert Redactor().tree({"a": {name: "v"}}) == {"a": {name: HIDDEN}}


@pytest.mark.parametrize(
    "name", ["max_tokens", "api_key_env", "eos_token", "token_ids", "total_tokens", "key", "tokenizer", "pad_token"]
)
def test_names_that_do_not(name: str) -> None:
    assert not is_secret_name(name)
    assert Redactor().tree({name: "v", "n": 1, "x": None}) == {name: "v", "n": 1, "x": None}


def test_a_schema_with_a_property_named_password_stays_whole() -> None:
    schema = {"properties": {"password": {"type": "string"}, "token": {"type": "string"}}}
    assert Redactor().tree(schema) == schema


def test_logprobs_of_a_model_answer_keep_their_pieces_of_text() -> None:
    content = [{"token": " hello", "logprob": -0.5}]
    assert Redactor().tree(content) == content
    assert Redactor().tree({"token": "0123456789abcdefgh"}) == {"token": HIDDEN}


def test_hiding_twice_changes_nothing_more() -> None:
    once = Redactor(["topsecret1"]).text("api_key=topsecret1 Bearer abc123def456 sk-abcdefghijklmnop1234")
    assert Redactor(["topsecret1"]).text(once) == once


def test_the_input_is_not_changed() -> None:
    tree = {"api_key": "abc", "list": ["x"]}
    Redactor().tree(tree)
    assert tree == {"api_key": "abc", "list": ["x"]}
