"""The page and the JSON API of a served run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, BinaryIO, Literal

from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.routing import Route

from rowssl import __version__
from rowssl.core.errors import ImageError, InputError
from rowssl.core.files import Busy
from rowssl.data.images import MAX_PIXELS
from rowssl.report.charts import palette_css
from rowssl.report.templating import source, templates
from rowssl.runs.predict import Layout
from rowssl.runs.run import Run, Stale, Terms
from rowssl.serve.limits import Bodies, Gate, Ticket
from rowssl.serve.schemas import Answer, ClassPage, Edited, Embedding, Health, Merge, Move, Overview, Problem, Rename
from rowssl.serve.schemas import Split as SplitBody
from rowssl.serve.security import Guard
from rowssl.serve.session import NotThere, Served

ENVELOPE = 64 * 1024  # bytes of a multipart body around the file
REFUSALS: dict[int | str, dict[str, Any]] = {
    404: {"model": Problem, "description": "No such class or row."},
    422: {"model": Problem, "description": "One sentence says what is wrong."},
    504: {"model": Problem, "description": "It took too long."},
}
EVERYWHERE: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "Another server is meant, or the request cannot be read at all."},
    401: {"model": Problem, "description": "The token is missing, where there is one."},
    403: {"model": Problem, "description": "A change that was asked for by another web page."},
    413: {"model": Problem, "description": "The body is above 1 MiB, or an image above 10 MiB."},
    503: {"model": Problem, "description": "Too many requests at a time."},
}
ACTIONS = ("/merge", "/split")  # what may follow a class in a path


@dataclass(frozen=True)
class Limits:
    """What one client may ask of the server."""

    upload: int = 10 * 2**20  # bytes of an image
    body: int = 2**20  # bytes of any other request
    workers: int = 2  # answers at a time
    queue: int = 64  # answers waiting
    seconds: float = 30.0
    bodies: int = 128  # on their way in at a time: half of the connections
    held: int = 2**28  # bytes of all bodies at a time, most of them on disk


def create_app(served: Served, *, host: str = "127.0.0.1", token: str = "", limits: Limits | None = None) -> Guard:
    """The ASGI application; `Guard` says what `host` and `token` are for."""
    limits = limits or Limits()
    answers = Gate(limits.workers, limits.queue, limits.seconds)
    looks = Gate(2, 512, limits.seconds)  # a gallery asks for a hundred thumbnails at once
    edits = Gate(1, limits.queue, limits.seconds)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        answers.close()
        looks.close()
        edits.close(wait=True)
        served.close()

    app = FastAPI(
        title="rowssl", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None, responses=EVERYWHERE,
        description="Classes of a finished run: ask about new images, and edit the classes.",
    )  # fmt: skip
    _refusals(app)
    _page(app)

    @app.get("/health", summary="Whether the server is up")
    async def health() -> Health:
        return Health(version=__version__, classes=len(served.model.edits.classes))

    @app.post(
        "/predict",
        summary="What the model says of one image, or of one embedding",
        openapi_extra={"requestBody": {"required": True, "content": _asked_about(served)}},
        responses=REFUSALS | {415: {"model": Problem, "description": "Not an image."}},
    )
    async def predict(
        request: Request,
        top: Annotated[int, Query(ge=0, le=1000, description="How many of the most likely classes to list.")] = 0,
        abstain: Annotated[float, Query(ge=0, le=1, description="Below this confidence the answer abstains.")] = 0.0,
    ) -> Answer:
        asked = Layout(top, abstain)
        ticket = Ticket(limits.seconds)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "application/json":
            values = await request.body()  # before a place is taken: it may never come
            return await answers.run(lambda: served.answer_embedding(_embedding(values), asked), ticket)
        if kind != "multipart/form-data":
            raise HTTPException(415, "Send an image as multipart/form-data, or an embedding as application/json.")
        if not served.model.takes_images:
            raise HTTPException(422, 'The run is on embeddings: send JSON, {"embedding": [...]}, and no image.')
        try:
            file = await _upload(request, limits.upload)
            return await answers.run(partial(_judge, served, file, asked), ticket)
        finally:
            await request.close()

    @app.get("/classes", summary="All classes, largest first", responses=REFUSALS)
    async def classes() -> Overview:
        return await looks.run(served.overview)

    @app.get("/classes.csv", summary="The classes as a table", responses=REFUSALS, response_class=Response)
    async def table() -> Response:
        named = {"Content-Disposition": 'attachment; filename="classes.csv"'}
        return Response(await looks.run(served.classes_csv), media_type="text/csv; charset=utf-8", headers=named)

    @app.get("/classes/{class_id:path}", summary="A class and its training images", responses=REFUSALS)
    async def one_class(
        class_id: str,
        order: Annotated[Literal["typical", "doubtful"], Query(description="Which images come first.")] = "typical",
        offset: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=0, le=200)] = 60,
    ) -> ClassPage:
        def look() -> ClassPage:
            view = served.view()
            return view.page(view.place(class_id), order, offset, limit)

        return await looks.run(look)

    @app.get("/thumb/{row}", summary="A small picture of a training image", responses=REFUSALS, response_class=Response)
    async def thumb(row: int) -> Response:
        picture = await looks.run(partial(served.thumb, row))
        return Response(picture, media_type="image/jpeg", headers={"Cache-Control": "private, max-age=86400"})

    async def edit(work: Callable[[Run], Run], *asked: str) -> Edited:
        ticket = Ticket(limits.seconds)

        def change() -> Edited:
            for one in asked:
                served.view().place(one)  # 404 rather than 422
            terms = Terms(ticket.left() / 2, ticket.claim)  # half: those behind it are to be told in time too
            overview, problems = served.edit(lambda run: work(run.within(terms)))
            return Edited(**overview.model_dump(), problems=list(problems))

        return await edits.run(change, ticket)

    async def renamed(class_id: str) -> None:
        """`/classes/x/merge` is POST alone, unless `x/merge` is a class."""
        if class_id.endswith(ACTIONS):
            with suppress(NotThere):
                await looks.run(lambda: served.view().place(class_id))
                return
            raise HTTPException(405)

    @app.patch(
        "/classes/{class_id:path}",
        summary="Call a class something",
        responses=REFUSALS,
        dependencies=[Depends(renamed)],
    )
    async def rename(class_id: str, body: Rename) -> Edited:
        return await edit(lambda run: run.rename(class_id, body.name), class_id)

    @app.post("/classes/{class_id:path}/merge", summary="Other classes join this one", responses=REFUSALS)
    async def merge(class_id: str, body: Merge) -> Edited:
        return await edit(lambda run: run.merge(class_id, *body.others), class_id, *body.others)

    @app.post(
        "/classes/{class_id:path}/split", summary="Divide a class by what its images look like", responses=REFUSALS
    )
    async def split(class_id: str, body: SplitBody) -> Edited:
        return await edit(lambda run: run.split(class_id, body.parts), class_id)

    @app.post("/move", summary="Put training images into another class", responses=REFUSALS)
    async def move(body: Move) -> Edited:
        return await edit(lambda run: run.move(body.files, body.class_id), body.class_id)

    @app.post("/undo", summary="Take the last edit back", responses=REFUSALS)
    async def undo() -> Edited:
        return await edit(Run.undo)

    bodies = Bodies(limits.bodies, limits.held, limits.seconds)
    return Guard(app, host=host, token=token, body=limits.body, upload=limits.upload + ENVELOPE, bodies=bodies)


def _asked_about(served: Served) -> dict[str, Any]:
    """The body of POST /predict, as the document has it: what this very model looks at."""
    if served.model.takes_images:
        image = {"type": "string", "format": "binary", "description": "One image file."}
        schema: dict[str, Any] = {"type": "object", "required": ["image"], "properties": {"image": image}}
        return {"multipart/form-data": {"schema": schema, "encoding": {"image": {"contentType": "image/*"}}}}
    schema = Embedding.model_json_schema()
    schema["properties"]["embedding"] |= dict.fromkeys(("minItems", "maxItems"), served.model.encoder.trunk_shape[0])
    return {"application/json": {"schema": schema}}


def _judge(served: Served, file: BinaryIO, asked: Layout) -> Answer:
    try:
        return served.answer_image(file.read(), asked)
    except ImageError as error:
        reason = str(error).removeprefix("cannot read image upload: ")
        if "megapixels" in reason:
            raise HTTPException(422, f"The image is above the limit of {MAX_PIXELS / 1e6:g} megapixels.") from None
        raise HTTPException(415, f"This cannot be read as an image: {reason}.") from None


async def _upload(request: Request, limit: int) -> BinaryIO:
    """The file of a multipart body, on disk if it is large: many may wait. The guard stops a body that is too large."""
    form = await request.form(max_files=1, max_fields=8)
    for part in form.values():
        if isinstance(part, UploadFile):
            if (part.size or 0) > limit:
                raise HTTPException(413, f"The upload is above the limit of {limit / 2**20:.0f} MiB.")
            return part.file
    raise HTTPException(422, "There is no file in the request: send the image as the field `image`.")


def _embedding(body: bytes) -> list[float]:
    try:
        return Embedding.model_validate_json(body).embedding
    except ValidationError as error:
        raise HTTPException(422, _sentence(error.errors())) from None


def _sentence(errors: Any) -> str:
    """The first mistake in a request body, in words."""
    first = errors[0]
    place = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
    return f"{f'{place}: ' if place else ''}{first['msg']}"


def _refusals(app: FastAPI) -> None:
    """Every refusal is {"detail": one sentence}."""

    @app.exception_handler(InputError)
    async def refused(_: Request, error: InputError) -> JSONResponse:
        status = 404 if isinstance(error, NotThere) else 503 if isinstance(error, Stale | Busy) else 422
        return JSONResponse({"detail": str(error)}, status)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return JSONResponse({"detail": _sentence(error.errors())}, 422)

    @app.exception_handler(405)
    async def not_so(request: Request, error: HTTPException) -> JSONResponse:
        """Which methods there are: those of all routes with this path, where Starlette names those of the first."""
        here = [
            route for route in app.routes if isinstance(route, Route) and route.path_regex.match(request.scope["path"])
        ]
        path = max((route.path for route in here), key=len, default="")
        methods = {method for route in here if route.path == path for method in route.methods or ()}
        return JSONResponse({"detail": error.detail}, 405, {"Allow": ", ".join(sorted(methods))})


def _page(app: FastAPI) -> None:
    """The page, its script and style from the package, and a list of the endpoints."""
    found = templates("rowssl.serve")
    kinds = {"page.html": "text/html", "page.js": "text/javascript", "page.css": "text/css"}
    for name, kind in kinds.items():
        text = found.get_template(name).render() if name == "page.html" else source(name, "rowssl.serve")
        text = palette_css() + text if name == "page.css" else text
        content = partial(Response, text.encode(), media_type=f"{kind}; charset=utf-8")
        place = "/" if name == "page.html" else f"/{name}"
        app.router.routes.append(Route(place, partial(_same, content), include_in_schema=False))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        paths = app.openapi()["paths"].items()
        rows = [
            (method.upper(), path, about.get("summary", ""))
            for path, methods in paths
            for method, about in methods.items()
        ]
        return HTMLResponse(found.get_template("api.html").render(endpoints=rows))


async def _same(content: Callable[..., Response], _: Request) -> Response:
    return content(headers={"Cache-Control": "no-cache"})
