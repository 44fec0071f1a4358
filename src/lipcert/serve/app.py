"""The HTTP paths of the service."""

import asyncio
import io
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import FastAPI, File, HTTPException, Request, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.requests import ClientDisconnect

from lipcert.certify.network import ProvedNetwork
from lipcert.errors import DataError
from lipcert.pictures import Picture, check_shape, read_picture
from lipcert.serve.answers import Batch, Certificate, Health, Problem
from lipcert.serve.batching import Batcher, BusyError
from lipcert.serve.bodies import Bodies
from lipcert.serve.gate import Gate
from lipcert.serve.metrics import Metrics

READERS = 4
ABOUT = """
Post a picture, get its class and a **proved** radius: no picture within that l2 distance (pixels from 0 to 1)
is classified differently. The certificates are those of `lipcert certify`, rounding included.
"""
PICTURE = {
    "requestBody": {
        "required": True,
        "description": "The picture itself: PNG, JPEG or WebP.",
        "content": {
            kind: {"schema": {"type": "string", "format": "binary"}}
            for kind in ("image/png", "image/jpeg", "image/webp")
        },
    }
}
PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "The picture cannot be read."},
    408: {"model": Problem, "description": "The body of the request took too long."},
    413: {"model": Problem, "description": "The request is too large."},
    422: {"model": Problem, "description": "The request is not what this path takes."},
    503: {"model": Problem, "description": "Too many pictures are waiting; try again after a second."},
}


def create_app(
    network: ProvedNetwork,
    name: str,
    *,
    batch: int = 32,
    waiting: int = 256,
    megabytes: int = 32,
    seconds: float = 60,
) -> FastAPI:
    """The service as an ASGI application; a server that is about to stop calls its `state.bodies.stop`.

    Args:
        network: to certify with.
        name: of the network, to display.
        batch: pictures that are certified together, and pictures in one request to /certify/batch.
        waiting: pictures that may wait, not below `batch`; more are refused with 503.
        megabytes: size of a request.
        seconds: that the body of a request may take to arrive.

    Raises:
        ArgumentError: the network does not take square grey or colour images.
    """
    check_shape(network.input_shape)
    network.hash  # noqa: B018 (computed here, so that no request waits for it)
    metrics, waiting = Metrics(), max(waiting, batch)
    batcher = Batcher(network, largest=batch, waiting=waiting, batched=metrics.batches.add)
    readers = ThreadPoolExecutor(READERS, "lipcert-read")

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        worker = asyncio.create_task(batcher.run())
        yield
        worker.cancel()
        with suppress(asyncio.CancelledError):
            await worker

    async def read(content: bytes, called: str) -> Picture | DataError:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(
                readers, lambda: read_picture(io.BytesIO(content), network.input_shape, name=called)
            )
        except DataError as error:
            metrics.pictures["unreadable"] += 1
            return error

    async def certify(pictures: list[Picture]) -> list[dict[str, Any]]:
        try:
            found = await batcher.certify(pictures)
        except BusyError as error:
            message = f"more than {waiting} pictures are waiting; try again after a second"
            raise HTTPException(503, message, {"Retry-After": "1"}) from error
        metrics.pictures["certified"] += len(found)
        return found

    app = FastAPIOffline(
        title=f"lipcert: {name}",
        description=ABOUT,
        version=version("lipcert"),
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.bodies = Bodies(seconds)
    app.add_middleware(Gate, metrics=metrics, largest=megabytes * 10**6, bodies=app.state.bodies)
    _answer_errors(app)

    @app.post(
        "/certify",
        summary="Certify one picture",
        tags=["Certificates"],
        response_model=Certificate,
        responses=PROBLEMS,
        openapi_extra=PICTURE,
    )
    async def certify_one(request: Request) -> dict[str, Any]:
        """The picture is the body of the request."""
        if request.headers.get("content-type", "").strip().lower().startswith("multipart/"):
            raise HTTPException(
                415, "expected the picture itself as the body, got a form; post forms to /certify/batch"
            )
        picture = await read(await request.body(), "picture")
        if isinstance(picture, DataError):
            raise picture
        (found,) = await certify([picture])
        return found

    @app.post(
        "/certify/batch",
        summary="Certify several pictures",
        tags=["Certificates"],
        response_model=Batch,
        responses=PROBLEMS,
    )
    async def certify_several(
        files: Annotated[list[UploadFile], File(description="Pictures: PNG, JPEG or WebP.")],
    ) -> dict[str, Any]:
        """The pictures are the files of a form; one that cannot be read does not stop the others."""
        if len(files) > batch:
            raise HTTPException(413, f"expected at most {batch} pictures in one request, got {len(files)}")
        names = [file.filename or f"picture {place}" for place, file in enumerate(files)]
        reading = [read(await file.read(), called) for file, called in zip(files, names, strict=True)]
        pictures = await asyncio.gather(*reading)
        found = iter(await certify([picture for picture in pictures if isinstance(picture, Picture)]))
        return {
            "answers": [
                {"file": called} | (next(found) if isinstance(picture, Picture) else {"error": str(picture)})
                for called, picture in zip(names, pictures, strict=True)
            ]
        }

    @app.get("/health", summary="Whether the service answers, and with which network", tags=["Service"])
    async def health() -> Health:
        return Health(
            status="ok",
            network=name,
            network_sha256=network.hash,
            input_shape=list(network.input_shape),
            classes=list(network.classes),
            lipcert=version("lipcert"),
        )

    @app.get(
        "/metrics",
        summary="Counters in the text format of Prometheus",
        tags=["Service"],
        response_class=PlainTextResponse,
    )
    async def numbers() -> str:
        return metrics.text(waiting=len(batcher))

    @app.get("/", include_in_schema=False)
    async def front() -> RedirectResponse:
        return RedirectResponse("/docs")

    return app


def _answer_errors(app: FastAPI) -> None:
    """Every error is one sentence under `error`."""

    @app.exception_handler(DataError)
    async def unreadable(request: Request, error: DataError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 400)

    @app.exception_handler(AnyHTTPException)
    async def refused(request: Request, error: AnyHTTPException) -> JSONResponse:
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        return JSONResponse({"error": "expected a form with one or more pictures under the name files"}, 422)

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=499)  # only for the counter

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": f"the service failed ({type(error).__name__})"}, 500)
