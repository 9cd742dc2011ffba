"""The mitmproxy face: hooks only. Tells who calls, ends TLS for model hosts, decides egress, re-addresses model calls.

A harness that knows nothing of us sends `CONNECT api.openai.com:443` with its token as the proxy user; inside, every
request goes to the site. A harness with a base URL may come to the same port. Everything else leaves only when the
rollout's rules allow it, and each decision is journalled. It does not know dialects, tokens or engines.
"""

import base64
from typing import NamedTuple

from mitmproxy import connection, http, tcp
from mitmproxy.proxy import server_hooks
from mitmproxy.tls import ClientHelloData

from proxy_addons.egress import allowing_rule
from proxy_addons.ledger import Ledger
from proxy_addons.rollouts import Registry, Rollout, State
from proxy_addons.site import HOST, RELAY, TOKEN, api_key


class Client(NamedTuple):
    """What a CONNECT told about a client connection."""

    rollout: Rollout
    host: str
    port: int
    is_model: bool


class Addon:
    def __init__(
        self, registry: Registry, ledger: Ledger, hosts: tuple[str, ...], site: tuple[str, int], relay_secret: str
    ) -> None:
        self._registry = registry
        self._ledger = ledger
        self._hosts = frozenset(hosts)
        self._site = site
        self._relay_secret = relay_secret
        self._clients: dict[str, Client] = {}
        self._dials: dict[str, set[tuple[str, int]]] = {}  # what a client connection may dial besides the site

    def http_connect(self, flow: http.HTTPFlow) -> None:
        rollout = self._registry.by_token(_proxy_user(flow.request.headers))
        if rollout is None:
            flow.response = _who()
            return
        host, port = flow.request.host, flow.request.port
        is_model = host in self._hosts
        if not is_model and not self._may_leave(flow, rollout, host, port):
            flow.response = _refused(host)
            return
        self._clients[flow.client_conn.id] = Client(rollout, host, port, is_model)

    def tls_clienthello(self, data: ClientHelloData) -> None:
        client = self._clients.get(data.context.client.id)
        if client is not None and not client.is_model:
            data.ignore_connection = True  # an allowed host is tunnelled, not read

    def requestheaders(self, flow: http.HTTPFlow) -> None:
        if flow.response:
            return
        headers = flow.request.headers
        for name in [name for name in headers if name.lower().startswith("x-openforge-")]:
            del headers[name]
        client = self._clients.get(flow.client_conn.id)
        rollout = client.rollout if client else self._registry.by_token(_proxy_user(headers))
        headers.pop("proxy-authorization", None)
        if rollout is None and self._knows_itself(flow.request):
            self._readdress(flow, "")
        elif rollout is None:
            flow.response = _who()
        elif (client and client.is_model) or flow.request.host in self._hosts:
            self._readdress(flow, rollout.token)
        elif not self._may_leave(flow, rollout, flow.request.host, flow.request.port):
            flow.response = _refused(flow.request.host)

    def responseheaders(self, flow: http.HTTPFlow) -> None:
        if flow.response:
            flow.response.stream = True

    def server_connect(self, data: server_hooks.ServerConnectionHookData) -> None:
        """The last word, whatever went wrong before: nothing is dialled but the site and what was allowed."""
        address = data.server.address
        if address is None or (tuple(address[:2]) not in ({self._site} | self._dials.get(data.client.id, set()))):
            data.server.error = "egress refused"

    def tcp_start(self, flow: tcp.TCPFlow) -> None:
        """Bytes that are neither TLS nor HTTP, inside a tunnel to a model host: nobody answers those."""
        client = self._clients.get(flow.client_conn.id)
        if client is not None and client.is_model:
            flow.kill()

    def client_disconnected(self, client: connection.Client) -> None:
        self._clients.pop(client.id, None)
        self._dials.pop(client.id, None)

    def _may_leave(self, flow: http.HTTPFlow, rollout: Rollout, host: str, port: int) -> bool:
        rule = allowing_rule(rollout.egress_allow, host, port) if rollout.state is State.OPEN else None
        self._ledger.egress(rollout, host, port, rule, flow.request.method)
        if rule is not None:
            self._dials.setdefault(flow.client_conn.id, set()).add((host, port))
        return rule is not None

    def _knows_itself(self, request: http.Request) -> bool:
        """A base-URL call carries its token in the path or as the API key."""
        token = request.path[3:].partition("/")[0] if request.path.startswith("/r/") else api_key(request.headers.get)
        return self._registry.by_token(token) is not None

    def _readdress(self, flow: http.HTTPFlow, token: str) -> None:
        request = flow.request
        host = request.pretty_host
        request.headers[RELAY] = self._relay_secret
        request.headers[TOKEN] = token
        request.headers[HOST] = host
        request.headers.pop("accept-encoding", None)
        request.scheme = "http"
        request.host, request.port = self._site
        request.stream = True


def _proxy_user(headers: http.Headers) -> str:
    scheme, _, value = headers.get("proxy-authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(value, validate=True).decode().partition(":")[0]
    except ValueError:  # no base64, or no text in it
        return ""


def _who() -> http.Response:
    return http.Response.make(407, b"who calls?", {"proxy-authenticate": 'Basic realm="openforge"'})


def _refused(host: str) -> http.Response:
    return http.Response.make(403, f"egress to {host} is refused".encode())
