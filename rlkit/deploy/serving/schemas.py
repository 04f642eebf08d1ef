"""What is sent to the server and what comes back. Unknown fields are refused, never ignored, and
so is a value that would change the answer and is not supported."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
)


def _whole(value: Any) -> Any:
    """8.0 is an integer to JSON."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _null_is(default: Any) -> AfterValidator:
    """null is as good as nothing, as in OpenAI's."""
    return AfterValidator(lambda value: default if value is None else value)


def _text_only(kind: Any) -> Any:
    """Of a part of a message's content."""
    if kind != "text":
        raise ValueError("only parts of text are supported; images, sound and files are not")
    return kind


def _kind(value: Any) -> str | None:
    return {str: "<text>", list: "<list>"}.get(type(value))


def _characters(text: str) -> str:
    """Half of a surrogate pair can be written in JSON, and by no tokenizer or encoding be read."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(HALF_A_PAIR) from None
    return text


HALF_A_PAIR = "the text holds half of a surrogate pair, which is no character"
AnyText = Annotated[str, AfterValidator(_characters)]
Text = Annotated[AnyText, Field(min_length=1)]
DEFAULT_TOKENS = 512  # of an answer to /generate
# each token of an answer is searched for all of them
StopText = Annotated[Text, Field(max_length=256)]
WHOLE = BeforeValidator(_whole)
Tokens = Annotated[int, Field(ge=1, le=2**31 - 1), WHOLE]
Temperature = Annotated[float, Field(ge=0.0, le=2.0, allow_inf_nan=False)]
Probability = Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False)]
Nothing = Field(max_length=0)
Seed = Annotated[int, Field(ge=-(2**63), le=2**63 - 1), WHOLE]
Zero = Annotated[float, Field(ge=0.0, le=0.0)]
# of a field that takes both; pydantic puts them into its errors' places
KINDS = ("<text>", "<list>")
TEXT_OR_LIST = Discriminator(
    _kind,
    custom_error_type="text_or_list",
    custom_error_message="Input should be a text or a list",
)
Stop = Annotated[
    Annotated[StopText, Tag("<text>")]
    | Annotated[list[StopText], Field(max_length=16), Tag("<list>")],
    TEXT_OR_LIST,
]


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class GenerateRequest(_Asked):
    text: Text
    max_tokens: Tokens | None = DEFAULT_TOKENS  # null, too: that, or what the context has room for
    temperature: Annotated[Temperature | None, _null_is(0.7)] = 0.7
    top_p: Annotated[Probability | None, _null_is(1.0)] = 1.0
    stop: Stop | None = None
    seed: Seed | None = None
    raw: bool = Field(
        False, description="true: the text is the whole prompt; false: a user's message, which is "
        "put into the model's chat template",
    )  # fmt: skip


class GenerateAnswer(BaseModel):
    text: str
    confidence: float = Field(
        ge=0, le=1, description="geometric mean of the answer's token probabilities"
    )
    finish_reason: Literal["stop", "length"]
    prompt_tokens: int
    completion_tokens: int
    clues: list[str] | None = Field(description="of an Executor's answer; else null")


class TextPart(_Asked):
    type: Annotated[Literal["text"], BeforeValidator(_text_only)]
    text: AnyText


Content = Annotated[
    Annotated[AnyText, Tag("<text>")] | Annotated[list[TextPart], Tag("<list>")], TEXT_OR_LIST
]


class Message(_Asked):
    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    name: AnyText | None = None

    def plain(self) -> dict[str, str]:
        """As chat templates take it."""
        parts = self.content
        text = parts if isinstance(parts, str) else "".join(part.text for part in parts)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class StreamOptions(_Asked):
    include_usage: bool = False
    include_obfuscation: bool = False


class TemplateOptions(_Asked):
    enable_thinking: bool = False


class ResponseFormat(_Asked):
    type: Literal["text"]


class ChatRequest(_Asked):
    messages: Annotated[list[Message], Field(min_length=1)]
    model: AnyText | None = None
    max_tokens: Tokens | None = None
    max_completion_tokens: Tokens | None = None
    temperature: Annotated[Temperature | None, _null_is(1.0)] = 1.0
    top_p: Annotated[Probability | None, _null_is(1.0)] = 1.0
    n: Annotated[Annotated[int, Field(ge=1, le=1), WHOLE] | None, _null_is(1)] = 1
    stop: Stop | None = None
    seed: Seed | None = None
    stream: Annotated[bool | None, _null_is(False)] = False
    stream_options: StreamOptions | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20), WHOLE] | None = None
    chat_template_kwargs: TemplateOptions | None = None
    # taken where they ask for nothing
    response_format: ResponseFormat | None = None
    presence_penalty: Zero | None = None
    frequency_penalty: Zero | None = None
    tools: Annotated[list[Any], Nothing] | None = None
    tool_choice: Literal["none"] | None = None
    logit_bias: Annotated[dict[str, Any], Nothing] | None = None
    # taken, since they do not touch the answer
    user: AnyText | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None

    @field_validator("stream_options", "top_logprobs")
    @classmethod
    def _wants(cls, value: Any, info: ValidationInfo) -> Any:
        """A field that another one must be true for."""
        other = {"stream_options": "stream", "top_logprobs": "logprobs"}[info.field_name]
        if value is not None and not info.data.get(other):
            raise ValueError(
                f"it is allowed only where `{other}` is true; set that, or leave it out"
            )
        return value


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, prompt: int, answer: int) -> Usage:
        return cls(prompt_tokens=prompt, completion_tokens=answer, total_tokens=prompt + answer)


class LikelyToken(BaseModel):
    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(LikelyToken):
    top_logprobs: list[LikelyToken]


class Logprobs(BaseModel):
    content: list[TokenLogprob]


class AnswerMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str


class Choice(BaseModel):
    index: Literal[0] = 0
    message: AnswerMessage
    finish_reason: Literal["stop", "length"]
    logprobs: Logprobs | None = None


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage


class Delta(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChunkChoice(BaseModel):
    index: Literal[0] = 0
    delta: Delta
    finish_reason: Literal["stop", "length"] | None = None
    logprobs: Logprobs | None = None


class ChatChunk(BaseModel):
    """One event of a stream. The last one before `[DONE]` has no choice, but the usage, where
    `stream_options.include_usage` asks for it."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None


class ModelCard(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["rlkit"] = "rlkit"
    max_model_len: int = Field(description="tokens of prompt and answer together")


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class Health(BaseModel):
    status: Literal["ok", "failed"]
