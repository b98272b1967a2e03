"""A Redis of a test's own that dies and comes back without the end of its append-only file."""

from qim_streams.embedded.redis_server import EmbeddedRedis
from qim_streams.redis_tier import RedisClient
from tests.support.append_only import safe_bytes, written_file


class ForgetfulRedis:
    """`client` goes on over the losses. Server and client are the fixture's to end."""

    def __init__(self, server: EmbeddedRedis, client: RedisClient) -> None:
        self.client = client
        self._server, self._kept = server, 0

    def mark(self) -> None:
        """What comes from here on will be forgotten. A reply is given after the file was written to."""
        self._kept = written_file(self._server.data_dir).stat().st_size

    async def forget(self, nbytes: int | None = None) -> None:
        """SIGKILL, cut the file back to the mark or by its last `nbytes`, start again on the same port."""
        self._server.kill()
        file = written_file(self._server.data_dir)
        kept = self._kept if nbytes is None else max(safe_bytes(file), file.stat().st_size - nbytes)
        with file.open("r+b") as stream:
            stream.truncate(kept)
        self._server.start()
        await self.client.connection_pool.disconnect()
