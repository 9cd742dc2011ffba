"""What the proxy reads from a client's headers; test_contract.py has the proxy itself."""

import pytest
from mitmproxy.http import Headers

from proxy_addons.addon import _proxy_user


@pytest.mark.parametrize("value", [b"Basic \xff", b"Basic /w==", b"Bearer x", b"Basic"])
def test_proxy_credentials_that_cannot_be_read_are_nobody(value: bytes) -> None:
    assert _proxy_user(Headers([(b"proxy-authorization", value)])) == ""


def test_the_proxy_user_is_the_token() -> None:
    assert _proxy_user(Headers([(b"proxy-authorization", b"Basic dG9rZW46eA==")])) == "token"
