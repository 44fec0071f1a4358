"""The shapes of answers, as the OpenAPI page shows them."""

from pydantic import BaseModel, Field


class Certificate(BaseModel):
    """What is proved about one picture."""

    prediction: str = Field(description="The class.", examples=["cat"])
    runner_up: str | None = Field(description="The class that limits the radius; null if there is one class.")
    margin: float | None = Field(description="Logit of the prediction minus that of the runner-up.")
    rounding: float = Field(description="What was taken off the margin for rounding.")
    radius: float | None = Field(
        description="l2, pixels from 0 to 1, about the picture as the network sees it; 0: nothing is "
        "certified; null: unlimited."
    )
    resized_from: str | None = Field(description="Size before resizing; null if it was not resized.")
    radius_original: float | None = Field(
        description="The radius about the decoded 8-bit RGB picture, if it was resized; else null."
    )
    network_sha256: str = Field(description="Names the proved network: the SHA-256 of its file.")


class Named(Certificate):
    """A certificate in a batch."""

    file: str


class Unreadable(BaseModel):
    """A picture of a batch that could not be read."""

    file: str
    error: str


class Batch(BaseModel):
    """Answers in the order of the pictures."""

    answers: list[Named | Unreadable]


class Health(BaseModel):
    """The service and its network."""

    status: str
    network: str
    network_sha256: str
    input_shape: list[int]
    classes: list[str]
    lipcert: str


class Problem(BaseModel):
    """One sentence on what went wrong."""

    error: str
