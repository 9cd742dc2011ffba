"""An image registry that keeps what is pushed, and no more of the protocol than a push needs."""

import hashlib
import secrets

from aiohttp import web


class Registry:
    """`manifests` by `NAME:TAG`, `blobs` by digest."""

    def __init__(self) -> None:
        self.manifests: dict[str, bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self._uploads: dict[str, bytearray] = {}

    async def start(self) -> None:
        app = web.Application(client_max_size=1 << 30)
        blobs = "/v2/{name:.+}/blobs"
        app.router.add_get("/v2/", self._here)
        app.router.add_route("HEAD", blobs + "/{digest:sha256:.+}", self._has)
        app.router.add_post(blobs + "/uploads/", self._begin)
        app.router.add_patch("/v2/{name:.+}/blobs/uploads/{id}", self._add)
        app.router.add_put("/v2/{name:.+}/blobs/uploads/{id}", self._finish)
        app.router.add_put("/v2/{name:.+}/manifests/{tag}", self._name)
        app.router.add_route("HEAD", "/v2/{name:.+}/manifests/{tag}", self._named)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.address = f"127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _here(self, request: web.Request) -> web.Response:
        return web.json_response({})

    async def _has(self, request: web.Request) -> web.Response:
        blob = self.blobs.get(request.match_info["digest"])
        return web.Response(status=404) if blob is None else web.Response(body=blob)

    async def _begin(self, request: web.Request) -> web.Response:
        upload = secrets.token_hex(8)
        self._uploads[upload] = bytearray()
        return self._at(request.match_info["name"], upload, 202)

    async def _add(self, request: web.Request) -> web.Response:
        upload = request.match_info["id"]
        async for data in request.content.iter_any():
            self._uploads[upload] += data
        return self._at(request.match_info["name"], upload, 202)

    async def _finish(self, request: web.Request) -> web.Response:
        upload = request.match_info["id"]
        data = bytes(self._uploads.pop(upload)) + await request.read()
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if digest != request.query["digest"]:
            return web.Response(status=400)
        self.blobs[digest] = data
        return web.Response(status=201, headers={"Docker-Content-Digest": digest})

    async def _name(self, request: web.Request) -> web.Response:
        data = await request.read()
        self.manifests[f"{request.match_info['name']}:{request.match_info['tag']}"] = data
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        return web.Response(status=201, headers={"Docker-Content-Digest": digest})

    async def _named(self, request: web.Request) -> web.Response:
        return web.Response(status=404)

    def _at(self, name: str, upload: str, status: int) -> web.Response:
        size = len(self._uploads[upload])
        place = {"Location": f"/v2/{name}/blobs/uploads/{upload}", "Range": f"0-{max(0, size - 1)}"}
        return web.Response(status=status, headers={**place, "Docker-Upload-UUID": upload})
