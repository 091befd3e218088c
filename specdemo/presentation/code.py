"""Settings as the few lines that reproduce them elsewhere, without specdemo."""

import json
from collections.abc import Callable, Iterator
from shlex import join
from typing import Any, TypeVar

from specdemo.decoding import fields
from specdemo.errors import SettingsError
from specdemo.models.devices import draft_device, properties
from specdemo.presentation.wording import is_chat
from specdemo.records import Model, ModelPair, Request
from specdemo.settings import GenerationSettings
from specdemo.strategies import ServerDefault, Strategy

Where = Callable[[Model], str]
"""Path or name of a model, as the lines are to give it."""
_PORT = "8000"
Form = TypeVar("Form", dict[str, Any], list[str])


def code(
    flavour: str, pair: ModelPair, settings: GenerationSettings, prompt: str, where: Where = lambda model: model.name
) -> str:
    """The lines of one of `FLAVOURS`.

    Raises:
        SettingsError: that software cannot decode in this way or with this draft, or nobody knows how the server was
            told to.
    """
    if isinstance(settings.strategy, ServerDefault):
        raise SettingsError("Only whoever started the server knows how it speculates; choose a pair on this machine.")
    _, write = FLAVOURS[flavour]
    return "\n".join(write(pair, settings, prompt, where)) + "\n"


def _genai(pair: ModelPair, settings: GenerationSettings, prompt: str, where: Where) -> Iterator[str]:
    strategy, runtime = settings.strategy, pair.runtime
    if strategy.genai() is None:
        raise _lacks("OpenVINO GenAI", strategy)
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
    if strategy.drafter.model:
        source = f"draft_model=ov_genai.draft_model({_draft(pair, where)!r}, {draft_device(runtime)!r}{theirs})"
    yield "pipeline = ov_genai.LLMPipeline("
    yield f"    {where(pair.target)!r}, {runtime.device!r}, scheduler_config=scheduler{given},"
    yield f"    {source},"
    yield ")"
    yield "config = pipeline.get_generation_config()"
    for name, value in fields.genai(Request.of(prompt, settings)).items():
        why = "  # without it, GenAI does not apply a threshold in greedy decoding" if name == "logprobs" else ""
        yield f"config.{name} = {value!r}{why}"
    yield f"prompt = {prompt!r}"
    if is_chat(pair, settings):
        yield 'prompt = ov_genai.ChatHistory([{"role": "user", "content": prompt}])'
        if not settings.enable_thinking:
            yield 'prompt.set_extra_context({"enable_thinking": False})'
    else:
        yield "config.apply_chat_template = False"
    yield "print(pipeline.generate(prompt, config))"


def _ovms(pair: ModelPair, settings: GenerationSettings, prompt: str, where: Where) -> Iterator[str]:
    strategy = settings.strategy
    form = _form("OpenVINO Model Server", strategy, strategy.ovms())
    flags = ["--rest_port", _PORT, "--model_name", pair.target.name, "--model_path", where(pair.target)]
    flags += ["--task", "text_generation", "--target_device", pair.runtime.device]
    flags += ["--cache_size", str(pair.runtime.cache_size)]
    if strategy.drafter.model:
        yield join(["ovms", *flags, "--draft_source_model", _draft(pair, where)])
    else:  # the graph then needs prompt_lookup in its plugin_config
        yield join(["ovms", *flags, "--pipeline_type", "LM_CB"])
        yield "# and in the model's graph.pbtxt: plugin_config: '{ \"prompt_lookup\": true }'"
    yield ""
    yield _curl("/v3", pair, settings, prompt, fields.openai(Request.of(prompt, settings)) | form)


def _vllm(pair: ModelPair, settings: GenerationSettings, prompt: str, where: Where) -> Iterator[str]:
    strategy = settings.strategy
    form = _form("vLLM", strategy, strategy.vllm())
    if strategy.drafter.model:
        form = {"method": "eagle3" if pair.eagle3 else "draft_model", "model": _draft(pair, where), **form}
    flags = ["--port", _PORT, "--speculative-config", json.dumps(form)]
    yield join(["vllm", "serve", where(pair.target), *flags])
    yield ""
    yield _curl("/v1", pair, settings, prompt, fields.openai(Request.of(prompt, settings)))


def _llama_cpp(pair: ModelPair, settings: GenerationSettings, prompt: str, where: Where) -> Iterator[str]:
    strategy = settings.strategy
    flags = _form("llama.cpp", strategy, strategy.llama_cpp())
    if strategy.drafter.model:
        kind = "draft-eagle3" if pair.eagle3 else "draft-simple"
        flags = ["--spec-type", kind, "--spec-draft-model", _draft(pair, where), *flags]
    yield join(["llama-server", "--port", _PORT, "-m", where(pair.target), *flags])
    yield ""
    request = {"max_tokens": settings.max_new_tokens, **fields.llama_cpp(Request.of(prompt, settings))}
    yield _curl("/v1", pair, settings, prompt, request)


def _transformers(pair: ModelPair, settings: GenerationSettings, prompt: str, where: Where) -> Iterator[str]:
    strategy, options = settings.strategy, fields.transformers(Request.of(prompt, settings))
    by_head = pair.eagle3 and strategy.drafter.model
    form = _form("transformers", strategy, None if by_head else strategy.transformers())
    yield "from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed"
    yield ""
    yield f"tokenizer = AutoTokenizer.from_pretrained({where(pair.target)!r})"
    yield f"target = AutoModelForCausalLM.from_pretrained({where(pair.target)!r})"
    assistant = ""
    if strategy.drafter.model:
        assistant = ", assistant_model=draft"
        yield f"draft = AutoModelForCausalLM.from_pretrained({_draft(pair, where)!r})"
        yield from (f"draft.generation_config.{name} = {value!r}" for name, value in form.items())
    else:
        options |= form
    yield f"prompt = {prompt!r}"
    special = ""
    if is_chat(pair, settings):
        special = ", add_special_tokens=False"  # the template has them
        extra = "" if settings.enable_thinking else ", enable_thinking=False"
        yield 'chat = [{"role": "user", "content": prompt}]'
        yield f"prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False{extra})"
    yield f'inputs = tokenizer(prompt{special}, return_tensors="pt")'
    if settings.ignore_eos:
        yield "# transformers has no setting to go on past the end of the text, so this may stop earlier"
    if settings.do_sample:
        yield f"set_seed({settings.seed})"
    given = "".join(f", {name}={value!r}" for name, value in options.items())
    yield f"output = target.generate(**inputs{assistant}{given})"
    yield "print(tokenizer.decode(output[0, inputs.input_ids.shape[1]:], skip_special_tokens=True))"


def _curl(prefix: str, pair: ModelPair, settings: GenerationSettings, prompt: str, request: dict[str, Any]) -> str:
    """A request to a server, with `curl`."""
    path, body = "/completions", {"model": pair.target.name, "prompt": prompt, **request}
    if is_chat(pair, settings):
        path = "/chat/completions"
        body = {"model": pair.target.name, "messages": [{"role": "user", "content": prompt}], **request}
        if not settings.enable_thinking:
            body["chat_template_kwargs"] = {"enable_thinking": False}
    data = json.dumps(body, ensure_ascii=False)
    header = ["-H", "Content-Type: application/json"]
    return join(["curl", f"http://localhost:{_PORT}{prefix}{path}", *header, "-d", data])


def _draft(pair: ModelPair, where: Where) -> str:
    if pair.draft is None:
        raise SettingsError("This pair has no draft model; add one, or choose prompt lookup.")
    if pair.draft_kind == "translated":
        raise SettingsError(
            "This pair's draft has a different tokenizer than its target, and only specdemo's traced engine decodes "
            "with such a draft; choose another one, or prompt lookup."
        )
    return where(pair.draft)


def _form(what: str, strategy: Strategy, form: Form | None) -> Form:
    """The strategy's form for a software, if it has one."""
    if form is None:
        raise _lacks(what, strategy)
    return form


def _lacks(what: str, strategy: Strategy) -> SettingsError:
    return SettingsError(f"{what} cannot decode with {strategy.words}; choose a constant lookahead.")


FLAVOURS: dict[str, tuple[str, Callable[[ModelPair, GenerationSettings, str, Where], Iterator[str]]]] = {
    "genai": ("OpenVINO GenAI", _genai),
    "ovms": ("OpenVINO Model Server", _ovms),
    "vllm": ("vLLM", _vllm),
    "llama.cpp": ("llama.cpp", _llama_cpp),
    "transformers": ("transformers", _transformers),
}
"""Software that the lines can be for: its name, and what writes them."""
