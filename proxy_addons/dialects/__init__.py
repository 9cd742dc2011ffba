"""Wire dialects: pure wire → canonical request, and canonical answer → bytes. One file each."""

from proxy_addons.dialects.base import Dialect
from proxy_addons.dialects.chat import Chat
from proxy_addons.dialects.responses import Responses

DIALECTS: tuple[Dialect, ...] = (Chat(), Responses())
