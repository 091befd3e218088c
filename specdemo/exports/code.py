"""Code and commands that reproduce settings in other software. Prompts, names and paths are untrusted text, which is
quoted for its place: Python, JSON, bash, or a comment.
"""

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from specdemo.capabilities import EngineName, pair_refusal
from specdemo.engines import formats
from specdemo.errors import SettingsError, quoted
from specdemo.models.devices import draft_device, properties
from specdemo.models.library import Format, Origin, origin
from specdemo.records import ModelPair, Request
from specdemo.results.words import is_chat
from specdemo.settings import GenerationSettings
from specdemo.strategies import Constant, Lookup, ServerDefault, Strategy
from specdemo.text import printable

_PORT = "8000"


@dataclass(frozen=True)
class _CodeInputs:
    """What to reproduce: a request, the origins of its models, and the strategy as the software's options, `form`."""

    pair: ModelPair
    request: Request
    target: Origin
    draft: Origin | None
    form: Any


class Software(NamedTuple):
    """`form` converts a strategy, or returns None if there is no equivalent. `target` and `draft`: model formats that
    the software reads. `write` yields the lines. `engine` has its limits.
    """

    title: str
    form: Callable[[Strategy], Any]
    target: tuple[Format, ...]
    draft: tuple[Format, ...]
    write: Callable[[_CodeInputs], Iterator[str]]
    engine: EngineName | None = None


def code(flavour: str, pair: ModelPair, settings: GenerationSettings, prompt: str, *, local: bool = False) -> str:
    """Return the lines for one of `SOFTWARE`, with paths of this machine if `local`. A strategy that the software
    lacks is replaced by a constant lookahead or prompt lookup, and a draft that it cannot read by prompt lookup, as a
    comment then says. SettingsError: the software lacks something else.
    """
    software, request = SOFTWARE[flavour], Request.of(prompt, settings)
    if isinstance(request.strategy, ServerDefault):
        raise SettingsError("The server's own speculation settings are unknown; choose a pair on this machine.")
    if request.strategy.drafter.model and pair.draft is None:
        raise SettingsError("This pair has no draft model; add one, or choose prompt lookup.")
    if request.strategy.drafter.model and pair.draft_kind == "translated":
        raise SettingsError(
            "This pair's draft has a different tokenizer than its target, and only specdemo's traced engine decodes "
            "with such a draft; choose another one, or prompt lookup."
        )
    strategy = _nearest(software, pair, settings)
    request = replace(request, strategy=strategy)

    def origin_of(model: Any, formats: tuple[Format, ...]) -> Origin | None:
        origins = (origin(model, format_, local=local) for format_ in formats)
        return next(filter(None, origins), None)

    draft, notes = None, list[str]()
    if strategy != settings.strategy:
        asked = f"{settings.strategy.drafter.label.lower()} with {settings.strategy.description}"
        notes.append(f"{software.title} does not run {asked}; {strategy.description} is the nearest that it runs")
    if pair.draft is not None and strategy.drafter.model:
        draft = origin_of(pair.draft, software.draft)
        if draft is None:
            request = replace(request, strategy=Lookup(settings.max_ngram_size, settings.num_assistant_tokens))
            name = pair.draft.name
            notes.append(f"{software.title} cannot load {name} as a draft; n-grams of the text propose instead")
    target = origin_of(pair.target, software.target)
    if target is None:
        raise SettingsError(
            f"{software.title} cannot load {quoted(pair.target.name)}, which exists for OpenVINO only; "
            f"choose {SOFTWARE['genai'].title}, or another target."
        )
    notes += [source.get for source in (target, draft) if source is not None and source.get is not None]
    copy = _CodeInputs(pair, request, target, draft, software.form(request.strategy))
    return "\n".join([*(f"# {printable(note)}" for note in notes), *software.write(copy)]) + "\n"


def _nearest(software: Software, pair: ModelPair, settings: GenerationSettings) -> Strategy:
    """Return the strategy or, if the software lacks it, the nearest that it runs. SettingsError: it runs neither."""
    asked, kind = settings.strategy, pair.draft_kind
    limits = {"sampling": settings.do_sample, "penalty": settings.repetition_penalty != 1}
    number = settings.num_assistant_tokens
    nearest = Constant(number) if asked.drafter.model else Lookup(settings.max_ngram_size, number)
    for strategy in (asked, nearest):
        refusal = software.engine and pair_refusal(strategy, kind, software.engine, **limits)
        if software.form(strategy) is not None and not refusal:
            return strategy
    raise SettingsError(refusal or f"{software.title} cannot decode this way; choose a constant lookahead.")


def _genai(copy: _CodeInputs) -> Iterator[str]:
    runtime = copy.pair.runtime
    target_options, draft_options = (
        "".join(f", {name}={value!r}" for name, value in properties(runtime, device).items())
        for device in (runtime.device, draft_device(runtime))
    )
    drafter = "prompt_lookup=True"
    if copy.draft is not None:
        drafter = f"draft_model=ov_genai.draft_model({copy.draft.path!r}, {draft_device(runtime)!r}{draft_options})"
    yield "import openvino_genai as ov_genai"
    yield ""
    yield "scheduler = ov_genai.SchedulerConfig()  # whose KV cache grows as needed"
    yield "pipeline = ov_genai.LLMPipeline("
    yield f"    {copy.target.path!r}, {runtime.device!r}, scheduler_config=scheduler{target_options},"
    yield f"    {drafter},"
    yield ")"
    yield "config = pipeline.get_generation_config()"
    for name, value in formats.genai(copy.request).items():
        comment = "  # without it, GenAI does not apply a threshold in greedy decoding" if name == "logprobs" else ""
        yield f"config.{name} = {value!r}{comment}"
    yield f"prompt = {copy.request.prompt!r}"
    if not is_chat(copy.pair, copy.request):
        yield "config.apply_chat_template = False"
    else:
        system = f"{copy.request.messages[0]!r}, " if copy.request.system_prompt else ""
        yield f'prompt = ov_genai.ChatHistory([{system}{{"role": "user", "content": prompt}}])'
        if not copy.request.enable_thinking:
            yield 'prompt.set_extra_context({"enable_thinking": False})'
    yield "print(pipeline.generate(prompt, config))"


def _vllm(copy: _CodeInputs) -> Iterator[str]:
    form = copy.form
    if copy.draft is not None:
        form = {"method": "eagle3" if copy.pair.head == "eagle3" else "draft_model", "model": copy.draft.path, **form}
    if copy.target.path.endswith(".gguf"):
        yield "# vLLM 0.32 no longer reads GGUF files; replace this one by the repository of the original weights"
    flags = ["--port", _PORT, "--served-model-name", copy.pair.target.name, "--speculative-config", _json(form)]
    yield command(["vllm", "serve", copy.target.path, *flags])
    yield from _post(copy, formats.openai(copy.request))


def _llama_cpp(copy: _CodeInputs) -> Iterator[str]:
    flags = copy.form
    if copy.draft is not None:
        kind = "draft-eagle3" if copy.pair.head == "eagle3" else "draft-simple"
        kind += ",ngram-mod" if copy.request.strategy.drafter.copies else ""
        flags = ["--spec-type", kind, "--spec-draft-model", copy.draft.path, *flags]
    if "ngram-cache" in flags:
        yield "# llama.cpp's n-gram cache decides how much to propose by thresholds of its own"
    yield command(["llama-server", "--port", _PORT, "-m", copy.target.path, *flags])
    sampling = formats.llama_cpp(copy.request, copy.pair.target.context_length)
    yield from _post(copy, {"max_tokens": copy.request.max_new_tokens, **sampling})


SOFTWARE: dict[str, Software] = {
    "genai": Software(
        "OpenVINO GenAI", lambda strategy: strategy.genai(), ("openvino",), ("openvino",), _genai, "genai"
    ),
    "vllm": Software("vLLM", lambda strategy: strategy.vllm(), ("transformers", "gguf"), ("transformers",), _vllm),
    "llama.cpp": Software("llama.cpp", lambda strategy: strategy.llama_cpp(), ("gguf",), ("gguf",), _llama_cpp),
}


def _json(value: Any) -> str:
    """Write JSON on one line. Invisible characters are escaped; letters of any script are not."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def command(arguments: Sequence[str]) -> str:
    """Quote arguments for a shell. SettingsError: a name or path has invisible characters."""
    for argument in arguments:
        if not argument.isprintable():
            raise SettingsError(f"{quoted(argument)} has invisible characters; rename it.")
    return shlex.join(arguments)


def _post(copy: _CodeInputs, request: dict[str, Any]) -> Iterator[str]:
    """Yield a curl command for the server that the lines before it start."""
    path, body = "/v1/completions", dict[str, Any](prompt=copy.request.prompt)
    if is_chat(copy.pair, copy.request):
        path, body = "/v1/chat/completions", {"messages": copy.request.messages}
        if not copy.request.enable_thinking:
            body["chat_template_kwargs"] = {"enable_thinking": False}
    data = _json({"model": copy.pair.target.name, **body, **request})
    yield ""
    yield shlex.join(["curl", f"http://localhost:{_PORT}{path}", "-H", "Content-Type: application/json", "-d", data])
