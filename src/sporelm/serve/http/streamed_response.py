"""StreamedResponse: a response whose body is sent piece by piece."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from starlette.responses import Response

from sporelm.serve.http.api_call import ApiCall
from sporelm.serve.http.api_errors import ApiError
from sporelm.serve.http.request_limits import Message, Receive, Scope, Send


class StreamedResponse(Response):
    """A response whose pieces are sent as they are generated. An error becomes the last piece. When the response ends,
    for whatever reason, the generator is closed."""

    def __init__(
        self,
        pieces: AsyncGenerator[bytes, None],
        media_type: str,
        format_error: Callable[[ApiError], bytes],
        call: ApiCall,
    ) -> None:
        super().__init__(None, 200, {"cache-control": "no-cache", "x-accel-buffering": "no"}, media_type)
        del self.headers["content-length"]
        self.pieces = pieces
        self.format_error = format_error
        self.call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async with aclosing(self.pieces) as pieces, self.call.before_deadline():
                async for piece in pieces:
                    await send(_body_message(piece))
        except Exception as error:
            response = self.call.timeout_error() if isinstance(error, TimeoutError) else self.call.error_from(error)
            await send(_body_message(self.format_error(response)))
        await send(_body_message(b"", more=False))


def _body_message(data: bytes, *, more: bool = True) -> Message:
    """Return an ASGI message with a part of the body."""
    return {"type": "http.response.body", "body": data, "more_body": more}
