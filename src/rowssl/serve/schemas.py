"""What the API takes and gives, as it stands in /openapi.json."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Text = Annotated[str, Field(min_length=1, max_length=4096)]
Number = Annotated[float, Field(allow_inf_nan=False)]


class Asked(BaseModel):
    """A request body: unknown fields are mistakes."""

    model_config = ConfigDict(extra="forbid")


class Rename(Asked):
    """PATCH /classes/{id}"""

    name: Annotated[str, Field(min_length=1, max_length=200, description="Any text on one line.")]


class Merge(Asked):
    """POST /classes/{id}/merge"""

    others: Annotated[list[Text], Field(min_length=1, max_length=1000, description="Classes that join this one.")]


class Split(Asked):
    """POST /classes/{id}/split"""

    parts: Annotated[int, Field(ge=2, le=20)] = 2


class Move(Asked):
    """POST /move"""

    files: Annotated[list[Text], Field(min_length=1, max_length=10_000, description="Training images as listed.")]
    class_id: Annotated[Text, Field(description="Where they belong, by id or name.")]


class Embedding(Asked):
    """POST /predict for a run on embeddings"""

    embedding: Annotated[list[Number], Field(min_length=1, max_length=65_536)]


class ClassRef(BaseModel):
    """A class: its stable id, what people call it, and whether it had labels."""

    id: str
    name: str
    kind: Literal["known", "novel"]


class Member(BaseModel):
    """A training image in its class."""

    row: Annotated[int, Field(description="Number for /thumb/{row}.")]
    file: str
    confidence: float
    second: ClassRef | None
    labelled: bool
    label_issue: Annotated[ClassRef | None, Field(description="The class its picture speaks for against its label.")]


class ClassSummary(ClassRef):
    """A class and how much of the training data is in it."""

    size: int
    labelled: int
    confidence: Annotated[float | None, Field(description="Mean over its unlabelled images, if it has any.")]
    typical: Annotated[list[int], Field(description="Rows of its most typical images.")]


class ClassPage(ClassSummary):
    """A class and some of its training images."""

    members: list[Member]


class Overview(BaseModel):
    """All classes, largest first, and the last edit."""

    run: str
    model: str
    takes_images: Annotated[bool, Field(description="False for a run on embeddings.")]
    embedding_size: int | None
    pictures: Annotated[bool, Field(description="Whether training images can be shown.")]
    problem: Annotated[str, Field(description="Why they cannot, if they should.")]
    rows: int
    last_edit: Annotated[str, Field(description="What undo takes back; empty if there is no edit.")]
    classes: list[ClassSummary]


class Edited(Overview):
    """The classes after an edit."""

    problems: Annotated[list[str], Field(description="Files that could not be written again.")]


class Neighbour(BaseModel):
    """A training image near to what was asked about."""

    row: int
    file: str
    cosine: float
    label: ClassRef


class Choice(ClassRef):
    """A class and how likely it is."""

    probability: float


class Answer(ClassRef):
    """What the model says of one image."""

    confidence: float
    abstained: Annotated[bool, Field(description="The confidence is below `abstain`: take the class for a guess.")]
    top: Annotated[list[Choice], Field(description="The most likely classes, as many as `top` asked for.")]
    second: ClassRef | None
    far: Annotated[bool, Field(description="Far from everything the model was trained on.")]
    distance: Annotated[float, Field(description="To the nearest class; above 1 is far.")]
    nearest: list[Neighbour]


class Health(BaseModel):
    """GET /health"""

    status: Literal["ok"] = "ok"
    version: str
    classes: int


class Problem(BaseModel):
    """Any refusal: one sentence."""

    detail: str
