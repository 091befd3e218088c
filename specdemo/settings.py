"""Settings: everything a user can set, validated once for page, terminal and API.

Field names follow `openvino_genai.GenerationConfig`. Page and `--help` show their titles, descriptions and limits.
"""

import shlex
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError, core_schema

from specdemo.capabilities import DEFAULT_ENGINE, ENGINES, EngineName, refusal, supports, used_parameters
from specdemo.errors import SettingsError, capitalised, quoted
from specdemo.strategies import STRATEGIES, Parameters, Strategy, drafters, parameters, policies, strategy_of

Precision = Literal["default", "f32", "f16", "bf16"]
CachePrecision = Literal["default", "u4", "u8", "f16", "bf16", "f32"]
WeightsForm = Literal["exact", "int4", "int8", "fast"]  # of a GGUF file; models/gguf_weights.py says what they are
Weights = Literal["auto", WeightsForm]


class SettingsModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def checked(cls, **values: Any) -> Self:
        """Build the settings; raise `SettingsError` with a sentence about the first invalid value."""
        try:
            return cls(**values)
        except ValidationError as error:
            raise SettingsError(_message(cls, error)) from None  # the message contains all of the cause


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen: the likeliest, or a draw from a distribution with these parameters."""

    do_sample: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    seed: int = 0


class Choice:
    """Allowed values of a string with their labels, looked up at each use because strategies can be added."""

    def __init__(self, options: Callable[[], dict[str, str]]) -> None:
        self.options = options

    def __get_pydantic_core_schema__(self, source: type, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def _checked(self, value: str) -> str:
        options = self.options()
        if value in options:
            return value
        *others, last = map(repr, options)
        raise PydanticCustomError("choice", "should be {options}", {"options": f"{', '.join(others)} or {last}"})


def choices(field: FieldInfo) -> dict[str, str] | None:
    """Return a setting's allowed values with labels; None if they are not a fixed set."""
    for rule in field.metadata:
        if isinstance(rule, Choice):
            return rule.options()
    if get_origin(field.annotation) is Literal:
        return {value: value.capitalize() if value.isalpha() else value for value in get_args(field.annotation)}
    return None


class _Selection(SettingsModel):
    """Settings that select the strategy; the page and the terminal's help list them before the strategies' own."""

    engine: Annotated[EngineName, Choice(lambda: {name: engine.label for name, engine in ENGINES.items()})] = Field(
        DEFAULT_ENGINE, title="Engine", description="what runs the models"
    )
    drafter: Annotated[str, Choice(lambda: {name: drafter.label for name, drafter in drafters().items()})] = Field(
        "model", title="Drafter", description="who proposes the next tokens"
    )
    policy: Annotated[str, Choice(lambda: {name: policy.label for name, policy in policies().items()})] = Field(
        "constant", title="Lookahead policy", description="when the draft stops proposing and the target verifies"
    )


class GenerationSettings(Parameters, _Selection):
    """Settings of one comparison. Both sides share everything except the source of proposals."""

    max_new_tokens: int = Field(128, ge=2, le=2048, title="New tokens", description="maximum length of the answer")
    apply_chat_template: bool = Field(
        True, title="Chat template", description="send the prompt as a chat message, if the model is made for chats"
    )
    system_prompt: str = Field(
        "", max_length=2**16, title="System prompt", description="what the chat template puts before the first turn"
    )
    enable_thinking: bool = Field(
        True, title="Thinking", description="let models that can think do so before they answer"
    )
    ignore_eos: bool = Field(False, title="Ignore end of text", description="continue past the end-of-text token")
    do_sample: bool = Field(
        False, title="Sample", description="draw from the distribution instead of taking the likeliest token"
    )
    temperature: float = Field(
        0.8, ge=0.05, le=2, title="Temperature", description="above 1 flattens the distribution, below 1 sharpens it"
    )
    top_p: float = Field(
        1.0, gt=0, le=1, title="Top-p", description="smallest set of tokens with this much probability; 1 keeps all"
    )
    top_k: int = Field(50, ge=0, le=1000, title="Top-k", description="likeliest tokens kept; 0 keeps all")
    repetition_penalty: float = Field(
        1.0, ge=1, le=2, title="Repetition penalty", description="above 1 makes tokens already seen less likely"
    )
    seed: int = Field(0, ge=0, le=2**31 - 1, title="Seed", description="of the random draws when sampling")
    kv_cache: Literal["on", "off"] = Field(
        "on", title="KV cache", description="off: every pass recomputes the whole text"
    )
    sequential: bool = Field(
        False,
        title="One side after the other",
        description="run plain to its end, then speculative, instead of taking turns",
    )

    @model_validator(mode="before")
    @classmethod
    def _default_policy(cls, values: Any) -> Any:
        """Choose the drafter's first policy if only a drafter is given."""
        if not isinstance(values, dict) or "policy" in values:
            return values
        names = _policies_of(values.get("drafter"))
        return {**values, "policy": names[0]} if names else values

    @property
    def strategy(self) -> Strategy:
        strategy = strategy_of(self.drafter, self.policy)
        assert strategy is not None, "checked below"
        used = used_parameters(strategy, self.engine)
        return strategy(*(getattr(self, name) if name in used else None for name in strategy.parameters()))

    @property
    def sampling(self) -> Sampling:
        return Sampling(**{field.name: getattr(self, field.name) for field in fields(Sampling)})

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        reason = self._contradiction() or refusal(self.strategy, self.engine, kv_cache=self.kv_cache == "on")
        if reason is not None:
            raise ValueError(reason)
        return self

    def _contradiction(self) -> str | None:
        if strategy_of(self.drafter, self.policy) is None:
            names = " or ".join(_policies_of(self.drafter))
            return f"drafter {self.drafter} needs policy {names}; change one of the two"
        if self.system_prompt and not self.apply_chat_template:
            return "a system prompt needs the chat template; leave one of them out"
        for name in type(self).model_fields:
            value = getattr(self, name)
            if not supports(self.engine, name) and value != type(self).model_fields[name].default:
                other = next(engine for engine in ENGINES if supports(engine, name))
                return f"the {self.engine} engine does not support {name} {value}; choose the {other} engine".lower()
        return None


def _policies_of(drafter: Any) -> list[str]:
    return [strategy.policy.name for strategy in STRATEGIES.values() if strategy.drafter.name == drafter]


_OF_SAMPLING = ("temperature", "top_p", "top_k")  # the seed is ignored too, but harmless in a script


def require_effect(
    given: Collection[str], variants: Collection[GenerationSettings], write: Callable[..., str]
) -> None:
    """Check that each given setting affects a variant. `write` takes a name, or a name and a value."""
    used = {name for settings in variants for name in used_parameters(type(settings.strategy), settings.engine)}
    for name in given:
        if name in parameters() and name not in used:
            chosen = " and ".join(dict.fromkeys(write(*settings.strategy.setting()) for settings in variants))
            raise SettingsError(f"{write(name)} has no effect with {chosen}; leave it out, or change that.")
        if name in _OF_SAMPLING and not any(settings.do_sample for settings in variants):
            add = write("do_sample", True)
            raise SettingsError(f"{write(name)} has no effect in greedy decoding; leave it out, or add {add}.")


def option(name: str, value: Any = True) -> str:
    """Write a setting as the terminal's option, quoted for a shell."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag} {shlex.quote(str(value))}"


class RuntimeSettings(SettingsModel):
    device: str = Field("CPU", min_length=1, title="Device", description="OpenVINO device of the target")
    draft_device: str | None = Field(
        None, min_length=1, title="Draft device", description="OpenVINO device of the draft, if different"
    )
    precision: Precision = Field(
        "default", title="Precision", description="inference precision; default: the device decides"
    )
    kv_cache_precision: CachePrecision = Field(
        "default",
        title="KV-cache precision",
        description="default: the inference precision if one is chosen, else the device decides",
    )
    dynamic_quantization: Literal["default", "auto", "on", "off"] = Field(
        "default",
        title="Dynamic quantization",
        description="of activations, where weights are compressed; default: the device decides; on: in groups of 32; "
        "off: outputs diverge less often; auto: on in the traced engine where that is faster, else off",
    )
    weights: Weights = Field(
        "auto",
        title="Weights",
        description="of GGUF files: exact; int4: those of 4 bits exact, others int8; int8, fast: in groups of 64, "
        "8 or 4 bits; auto: the fastest that hardly changes the tokens, or for a large draft fast",
    )
    inference_num_threads: int = Field(
        0, ge=0, le=1024, title="Threads", description="CPU threads; 0: OpenVINO decides"
    )
    enable_prefix_caching: bool = Field(
        False,
        title="Prefix caching",
        description="keep the KV cache of earlier texts, so that a chat's next turn reads only what is new",
    )


def _message(cls: type[BaseModel], error: ValidationError) -> str:
    first = error.errors()[0]
    if not first["loc"]:  # a rule over several fields
        return f"{capitalised(first['msg'].removeprefix('Value error, '))}."
    name = str(first["loc"][0])
    field = cls.model_fields.get(name)
    if field is None:
        return f"There is no setting called {quoted(name)}; choose from {', '.join(cls.model_fields)}."
    reason = first["msg"].removeprefix("Input ")
    return f"{field.title or capitalised(name)} ({name}) {reason}, got {quoted(first['input'])}."
