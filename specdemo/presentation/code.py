"""Code for other software that reproduces settings in a few lines, without specdemo."""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from shlex import join
from typing import Any, NamedTuple

from specdemo.errors import SettingsError
from specdemo.models.devices import draft_device, properties
from specdemo.models.library import Format, Origin, origin
from specdemo.presentation.wording import is_chat
from specdemo.records import Model, ModelPair, Request
from specdemo.settings import GenerationSettings
from specdemo.strategies import DRAFT_KINDS, Lookup, ServerDefault, Strategy

_PORT = "8000"
_WINDOW = 4096  # last tokens for llama.cpp to penalize, if the context length is unknown


@dataclass(frozen=True)
class _Copy:
    """A request to reproduce, where to find its models, and the strategy in the software's form."""

    pair: ModelPair
    settings: GenerationSettings
    request: Request
    target: Origin
    draft: Origin | None
    form: Any

    @property
    def chat(self) -> bool:
        """True if the prompt is a chat message."""
        return is_chat(self.pair, self.settings)


class Software(NamedTuple):
    """Software to write code for.

    `form` converts a strategy to the software's form, `target` and `draft` are the model formats that it reads,
    `write` yields the lines, and `heads` are the kinds of head that it can load.
    """

    title: str
    form: Callable[[Strategy], Any]
    target: tuple[Format, ...]
    draft: tuple[Format, ...]
    write: Callable[[_Copy], Iterator[str]]
    heads: Collection[str] = frozenset({"eagle3"})


def code(flavour: str, pair: ModelPair, settings: GenerationSettings, prompt: str, *, local: bool = False) -> str:
    """Return the lines for one of `FLAVOURS`. With `local` they name paths on this machine.

    A draft that does not exist in a format that the software reads is replaced by prompt lookup, as a comment
    explains.

    Raises:
        SettingsError: the software does not support this strategy, draft or target, or the server's configuration is
            unknown.
    """
    software, request = FLAVOURS[flavour], Request.of(prompt, settings)
    if isinstance(request.strategy, ServerDefault):
        raise SettingsError("The server's own speculation settings are unknown; choose a pair on this machine.")
    if software.form(request.strategy) is None:
        strategy = request.strategy
        if strategy.fixed_lookahead is not None:  # so the drafter is what is unsupported
            raise SettingsError(
                f"{software.title} has no equivalent of {strategy.drafter.words}; choose another drafter."
            )
        raise SettingsError(f"{software.title} cannot decode with {strategy.words}; choose a constant lookahead.")
    draft, notes = None, list[str]()
    if request.strategy.drafter.model:
        model = _draft(pair)
        formats = software.draft if pair.head is None or pair.head in software.heads else ()
        draft = _found(model, formats, local)
        if draft is None:
            request = replace(request, strategy=Lookup(settings.max_ngram_size, settings.num_assistant_tokens))
            notes.append(f"{software.title} cannot load {model.name} as a draft; n-grams of the text propose instead")
    target = _found(pair.target, software.target, local)
    if target is None:
        raise SettingsError(
            f"{software.title} cannot load {pair.target.name!r}, which exists for OpenVINO only; "
            f"choose {FLAVOURS['genai'].title}, or another target."
        )
    notes += [place.get for place in (target, draft) if place is not None and place.get is not None]
    copy = _Copy(pair, settings, request, target, draft, software.form(request.strategy))
    return "\n".join([*(f"# {note}" for note in notes), *software.write(copy)]) + "\n"


def _draft(pair: ModelPair) -> Model:
    if pair.draft is None:
        raise SettingsError("This pair has no draft model; add one, or choose prompt lookup.")
    if pair.draft_kind == "translated":
        raise SettingsError(
            "This pair's draft has a different tokenizer than its target, and only specdemo's traced engine decodes "
            "with such a draft; choose another one, or prompt lookup."
        )
    return pair.draft


def _found(model: Model, formats: tuple[Format, ...], local: bool) -> Origin | None:
    """Return a model's origin in the first of these formats that it exists in."""
    return next(filter(None, (origin(model, format_, local=local) for format_ in formats)), None)


def _genai(copy: _Copy) -> Iterator[str]:
    runtime = copy.pair.runtime
    uncached = runtime.model_copy(update={"model_cache": False})
    given, theirs = (
        "".join(f", {name}={value!r}" for name, value in properties(uncached, device).items())
        for device in (runtime.device, draft_device(runtime))
    )
    yield "import openvino_genai as ov_genai"
    yield ""
    yield "scheduler = ov_genai.SchedulerConfig()"
    yield f"scheduler.cache_size = {runtime.cache_size}"
    source = "prompt_lookup=True"
    if copy.draft is not None:
        source = f"draft_model=ov_genai.draft_model({copy.draft.path!r}, {draft_device(runtime)!r}{theirs})"
    pipeline = "VLMPipeline" if copy.pair.target.in_parts else "LLMPipeline"
    yield f"pipeline = ov_genai.{pipeline}("
    yield f"    {copy.target.path!r}, {runtime.device!r}, scheduler_config=scheduler{given},"
    yield f"    {source},"
    yield ")"
    yield "config = pipeline.get_generation_config()"
    for name, value in copy.request.genai().items():
        why = "  # without it, GenAI does not apply a threshold in greedy decoding" if name == "logprobs" else ""
        yield f"config.{name} = {value!r}{why}"
    yield f"prompt = {copy.request.prompt!r}"
    if copy.chat and copy.pair.target.in_parts:  # GenAI accepts no chat history for these models
        yield "config.apply_chat_template = True"
    elif copy.chat:
        yield 'prompt = ov_genai.ChatHistory([{"role": "user", "content": prompt}])'
        if not copy.request.enable_thinking:
            yield 'prompt.set_extra_context({"enable_thinking": False})'
    else:
        yield "config.apply_chat_template = False"
    yield f"print(pipeline.generate(prompt, {'generation_config=' if copy.pair.target.in_parts else ''}config))"


def _ovms(copy: _Copy) -> Iterator[str]:
    runtime = copy.pair.runtime
    flags = ["--rest_port", _PORT, "--model_name", copy.pair.target.name, "--model_path", copy.target.path]
    flags += ["--task", "text_generation", "--target_device", runtime.device]
    flags += ["--cache_size", str(runtime.cache_size)]
    if copy.draft is not None:
        yield from command(["ovms", *flags, "--draft_source_model", copy.draft.path])
    else:  # the graph needs prompt_lookup in its plugin_config
        yield from command(["ovms", *flags, "--pipeline_type", "LM_CB"])
        yield "# and in the model's graph.pbtxt: plugin_config: '{ \"prompt_lookup\": true }'"
    yield ""
    yield from _request("/v3", copy, copy.request.openai() | copy.form)


def _vllm(copy: _Copy) -> Iterator[str]:
    form = copy.form
    if copy.draft is not None:
        form = {"method": "eagle3" if copy.pair.eagle3 else "draft_model", "model": copy.draft.path, **form}
    if copy.target.file is not None:
        yield "# vLLM's support of GGUF files is experimental; add --tokenizer with the original repository"
    flags = ["--port", _PORT, "--speculative-config", json.dumps(form)]
    yield from command(["vllm", "serve", copy.target.path, *flags])
    yield ""
    yield from _request("/v1", copy, copy.request.openai())


def _llama_cpp(copy: _Copy) -> Iterator[str]:
    flags = copy.form
    if copy.draft is not None:
        kind = "draft-eagle3" if copy.pair.eagle3 else "draft-simple"
        flags = ["--spec-type", kind, "--spec-draft-model", copy.draft.path, *flags]
    if "ngram-cache" in flags:
        yield "# llama.cpp's n-gram cache decides how much to propose by thresholds of its own"
    yield from command(["llama-server", "--port", _PORT, "-m", copy.target.path, *flags])
    yield ""
    window = copy.pair.target.context_length or _WINDOW
    yield from _request("/v1", copy, {"max_tokens": copy.request.max_new_tokens, **copy.request.llama_cpp(window)})


def _transformers(copy: _Copy) -> Iterator[str]:
    options = copy.request.transformers()
    if any(place is not None and place.file is not None for place in (copy.target, copy.draft)):
        yield "# transformers reads GGUF files with the packages accelerate and gguf"
    yield "from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed"
    yield ""
    yield f"tokenizer = AutoTokenizer.from_pretrained({_pretrained(copy.target)})"
    yield f"target = AutoModelForCausalLM.from_pretrained({_pretrained(copy.target)})"
    assistant = ""
    if copy.draft is not None:
        assistant = ", assistant_model=draft"
        yield f"draft = AutoModelForCausalLM.from_pretrained({_pretrained(copy.draft)})"
        yield from (f"draft.generation_config.{name} = {value!r}" for name, value in copy.form.items())
    else:
        options |= copy.form
    yield f"prompt = {copy.request.prompt!r}"
    special = ""
    if copy.chat:
        special = ", add_special_tokens=False"  # the template adds them
        extra = "" if copy.request.enable_thinking else ", enable_thinking=False"
        yield 'chat = [{"role": "user", "content": prompt}]'
        yield f"prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False{extra})"
    yield f'inputs = tokenizer(prompt{special}, return_tensors="pt")'
    if copy.request.ignore_eos:
        yield "# transformers has no setting to go on past the end of the text, so this may stop earlier"
    if copy.request.sampling.do_sample:
        yield f"set_seed({copy.request.sampling.seed})"
    given = "".join(f", {name}={value!r}" for name, value in options.items())
    yield f"output = target.generate(**inputs{assistant}{given})"
    yield "print(tokenizer.decode(output[0, inputs.input_ids.shape[1]:], skip_special_tokens=True))"


def _pretrained(place: Origin) -> str:
    """Return the arguments of `from_pretrained`."""
    return repr(place.place) if place.file is None else f"{place.place!r}, gguf_file={place.file!r}"


def _request(prefix: str, copy: _Copy, request: dict[str, Any]) -> Iterator[str]:
    """Yield a request to a server."""
    name, prompt = copy.pair.target.name, copy.request.prompt
    path, body = "/completions", {"model": name, "prompt": prompt, **request}
    if copy.chat:
        path = "/chat/completions"
        body = {"model": name, "messages": [{"role": "user", "content": prompt}], **request}
        if not copy.request.enable_thinking:
            body["chat_template_kwargs"] = {"enable_thinking": False}
    yield from post(f"http://localhost:{_PORT}{prefix}{path}", body)


_IR: tuple[Format, ...] = ("openvino",)
_HEADS = frozenset(kind.name for kind in DRAFT_KINDS.values() if kind.mode)

FLAVOURS: dict[str, Software] = {
    "genai": Software("OpenVINO GenAI", lambda strategy: strategy.genai(), _IR, _IR, _genai, _HEADS),
    "ovms": Software("OpenVINO Model Server", lambda strategy: strategy.genai(), _IR, _IR, _ovms, _HEADS),
    "vllm": Software("vLLM", lambda strategy: strategy.vllm(), ("transformers", "gguf"), ("transformers",), _vllm),
    "llama.cpp": Software("llama.cpp", lambda strategy: strategy.llama_cpp(), ("gguf",), ("gguf",), _llama_cpp),
    "transformers": Software(
        "transformers",
        lambda strategy: strategy.transformers(),
        ("transformers", "gguf"),
        ("transformers", "gguf"),
        _transformers,
        frozenset(),
    ),
}
"""All software to write code for."""


_PLAIN = re.compile(r"[\w./:=+\\-]+")


def command(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the line that runs a program and, if PowerShell (7.3 or newer) needs another one, that as a comment."""
    line, other = join(arguments), powershell(arguments)
    yield line
    if other != line:
        yield f"# in PowerShell: {other}"


def post(url: str, body: Mapping[str, Any]) -> Iterator[str]:
    """Yield the line that sends a JSON object to a server, and PowerShell's as a comment."""
    data = json.dumps(body, ensure_ascii=False)
    yield join(["curl", url, "-H", "Content-Type: application/json", "-d", data])
    flags = ["-Method", "Post", "-Uri", url, "-ContentType", "application/json; charset=utf-8", "-Body", data]
    yield f"# in PowerShell: {powershell(['Invoke-RestMethod', *flags])}"


def powershell(arguments: Sequence[str]) -> str:
    """Quote a command line for PowerShell, which doubles quotes within quotes."""
    return " ".join(each if _PLAIN.fullmatch(each) else "'" + each.replace("'", "''") + "'" for each in arguments)
